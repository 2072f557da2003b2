"""Kinds of models in the native library, made of toy GGUF files, against Python's: windows, recurrent layers, heads."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.decoding.heads import DraftHead, FeatureState
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.native_model import NativeModel
from edgedecode.errors import CapabilityError
from edgedecode.export.native.folder import NAME, NativeFolder
from edgedecode.memory.budget import Budget
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import Generation, ModelEntry
from tests.native.conftest import Check
from tests.native.test_models import assert_same, digest, in_python, last_rows, options, steps_of

pytest.importorskip("torch", reason="the export extras are not installed")
pytest.importorskip("onnxruntime")

from edgedecode.export.heads.gguf_head import write_gguf_head
from edgedecode.export.heads.head_entry import head_entry
from edgedecode.export.heads.layouts import read_head
from edgedecode.runtimes.onnx import OnnxRuntime
from tests.contract.toy_gguf import GGUF, write_toy_gguf
from tests.contract.toy_graph import ToyShape
from tests.export.heads.written import TinyHead, write_flat

Models = Mapping[str, LanguageModel]


def opened(root: Path, out: Path, entries: Mapping[str, ModelEntry]) -> Models:
    """Write the models' folder, and open them in Python."""
    engine, taps = OnnxRuntime(), entries["head"].taps if "head" in entries else ()
    written: dict[str, NativeModel] = {}
    models: dict[str, LanguageModel] = {}
    out.mkdir()
    for role, entry in entries.items():
        request = ModelRequest(entry, root, role, entries["target"].rows, Budget())
        if role == "target":
            request = replace(request, taps=taps)
        written[role] = engine.native_model(replace(request, beside=written.get("target")), out)
        models[role] = engine.open(replace(request, beside=models.get("target")))
    (out / "tokenizer.json").write_text("{}")
    names = [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()]
    folder = NativeFolder(
        name="toy",
        created_by="test",
        vocabulary_size=entries["target"].rows,
        generation=Generation(end_token_ids=(0,)),
        end_ids=(0,),
        tokenizer="tokenizer.json",
        turns={},
        models=written,
        files={name: file_entry(out / name) for name in names},
    )
    (out / NAME).write_text(folder.to_json())
    return models


def toy(root: Path, architecture: str, *, quantization: str = "", **sizes: int) -> ModelEntry:
    shape = ToyShape(**{"layers": 4, "context": 512, **sizes})
    entry = write_toy_gguf(root, shape, architecture=architecture, quantization=quantization)
    return replace(entry, graphs={}, weights=GGUF)


@pytest.mark.parametrize(
    ("architecture", "quantization"),
    [("qwen2", "Q8_0"), ("llama", "Q4_0"), ("gemma2", ""), ("granite", ""), ("phi3", ""), ("smollm3", "")],
)
def test_models_have_the_same_bits(native_check: Check, tmp_path: Path, architecture: str, quantization: str) -> None:
    models = opened(tmp_path, tmp_path / "out", {"target": toy(tmp_path, architecture, quantization=quantization)})
    assert_same(native_check, tmp_path / "out", models, steps_of("target", models["target"].card.rows))


def test_recurrent_layers_have_the_same_bits(native_check: Check, tmp_path: Path) -> None:
    """Passes that no longer fit the slots, rollbacks within them and to snapshots."""
    models = opened(tmp_path, tmp_path / "out", {"target": toy(tmp_path, "lfm2", layers=6)})
    model = models["target"]
    rng = np.random.default_rng(3)

    def forward(count: int) -> dict[str, Any]:
        tokens = [int(each) for each in rng.integers(0, model.card.rows, count)]
        return {"op": "forward", "state": 0, "tokens": tokens, "rows": 1}

    def keep(count: int) -> dict[str, Any]:
        return {"op": "keep", "state": 0, "count": count}

    steps: list[dict[str, Any]] = [
        {"op": "new", "state": 0, "model": "target", "capacity": 480, "rows": 8},
        forward(150),
        keep(100),  # the states have 86 of them
        *[step for _ in range(70) for step in (forward(1), keep(1))],
        forward(5),
        keep(2),
        forward(6),
        forward(2),
        keep(4),
        forward(3),
        {"op": "crop", "state": 0, "length": 176},
        forward(4),
        keep(3),
        {"op": "crop", "state": 0, "length": 120},
        forward(1),
        {"op": "crop", "state": 0, "length": 3},
        forward(90),
        keep(90),
        forward(2),
        forward(70),  # more rows than slots
        {"op": "crop", "state": 0, "length": 80},
        forward(1),
    ]
    assert_same(native_check, tmp_path / "out", models, steps)
    lengths = [step["length"] for step in in_python(models, steps) if "length" in step]
    assert any(0 < length < 120 for length in lengths)  # a snapshot was returned to


@pytest.mark.parametrize("architecture", ["qwen35", "granitehybrid"])
def test_gated_recurrences_have_the_same_bits(native_check: Check, tmp_path: Path, architecture: str) -> None:
    hybrids = pytest.importorskip("tests.contract.test_hybrid_models", reason="transformers is missing")
    models = opened(tmp_path, tmp_path / "out", {"target": hybrids.Written(tmp_path, architecture).entry})
    assert_same(native_check, tmp_path / "out", models, steps_of("target", hybrids.ROWS))


def test_a_head_has_the_same_bits(native_check: Check, tmp_path: Path) -> None:
    """Features of a long prompt, of kept rows and after a rollback; its own outputs; a trimmed vocabulary."""
    target = toy(tmp_path, "qwen2", quantization="Q8_0", hidden=64, rows=96, layers=8)
    tiny = TinyHead(64, 64, 96, 48, head_size=16, rotated=16)
    head, taps = read_head(write_flat(tmp_path / "flat", tiny, max_position_embeddings=512)), tiny.layers
    with (tmp_path / "head.gguf").open("wb") as file:
        write_gguf_head(file, head, bits=4, taps=taps)
    entry = head_entry(head, file="head.gguf", bits=4, taps=taps, source="test")
    models = opened(tmp_path, tmp_path / "out", {"target": target, "head": entry})
    own = models["head"]
    assert isinstance(own, DraftHead)
    rng = np.random.default_rng(5)

    def ids(count: int) -> list[int]:
        return [int(each) for each in rng.integers(0, 96, count)]

    steps: list[dict[str, Any]] = [
        {"op": "new", "state": 0, "model": "target", "capacity": 480, "rows": 8},
        {"op": "new", "state": 1, "model": "head", "capacity": 480, "rows": 1},
        {"op": "keep_features", "state": 0},
        {"op": "forward", "state": 0, "tokens": ids(400), "rows": 1},
        {"op": "keep", "state": 0, "count": 400},
        {"op": "draft", "state": 1, "tokens": ids(100), "of": 0, "start": 300},
        {"op": "keep", "state": 1, "count": 100},
        {"op": "draft", "state": 1, "tokens": ids(1)},
        {"op": "draft", "state": 1, "tokens": ids(1)},
        {"op": "forward", "state": 0, "tokens": ids(5), "rows": 1},
        {"op": "keep", "state": 0, "count": 3},
        {"op": "crop", "state": 1, "length": 99},
        {"op": "draft", "state": 1, "tokens": ids(4), "of": 0, "start": 399},
        {"op": "crop", "state": 0, "length": 401},
        {"op": "forward", "state": 0, "tokens": ids(2), "rows": 2},
        {"op": "draft", "state": 1, "tokens": ids(2), "of": 0, "start": 401},
    ]
    found = native_check("model", str(tmp_path / "out"), options(), lines=steps)
    states: dict[int, Any] = {}
    hidden = np.empty((0, 0), np.float32)
    for step, mine in zip(steps, found, strict=True):
        if step["op"] == "new":
            model = models[step["model"]]
            states[step["state"]] = model.new_state(step["capacity"], rows=step["rows"], tree=False)
            continue
        state = states[step["state"]]
        if step["op"] == "draft":
            features = None
            if "of" in step:
                assert isinstance(states[0], FeatureState)
                features = states[0].keep_features().rows(step["start"], step["start"] + len(step["tokens"]))
            read = {"hidden": hidden} if features is None else {"features": features}
            output = own.draft(step["tokens"], state, **read)
            hidden = output.hidden[None].copy()
            assert [mine["logits"], mine["hidden"]] == [digest(output.logits), digest(hidden)], step
        elif step["op"] == "keep_features":
            state.keep_features()
        elif step["op"] == "forward":
            assert mine["logits"] == digest(last_rows(models["target"], state, step)), step
        elif step["op"] == "keep":
            state.keep(range(step["count"]))
        else:
            state.crop(step["length"])
    assert models["head"].card.token_ids is not None


def test_a_model_without_graphs_is_refused(tmp_path: Path) -> None:
    entry = replace(toy(tmp_path, "qwen2"), gguf="", graphs={}, weights="")
    with pytest.raises(CapabilityError, match="no ONNX graphs of the model target"):
        OnnxRuntime().native_model(ModelRequest(entry, tmp_path, "target", entry.rows, Budget()), tmp_path / "out")
