"""What a target's state keeps for a head equals transformers' hidden states, whatever passes and rollbacks."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import FeatureState
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.runtimes.onnx import OnnxRuntime
from edgedecode.runtimes.onnx.features import SLOTS, features_nbytes
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.export.conftest import random_tokens
from tests.export.gguf.test_import_back import imported
from tests.export.gguf.writing import GGUF_SHAPES, export_gguf
from tests.export.tiny import TinyModel, write_model

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
TAPS = (2, 4, 5)
EXACT = 1e-4
SHAPES = {name: GGUF_SHAPES[name] for name in ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "granite", "smollm3")}
SHAPES["phi3"] = TinyModel(family="phi3", more={"pad_token_id": 0})  # its file has no more context than one window
ONLY_FILES = ("smollm3",)
"""Families whose exported graphs the engine's kernels run."""


def open_target(
    entry: ModelEntry, root: Path, *, taps: tuple[int, ...] = TAPS, budget: Budget | None = None
) -> LanguageModel:
    return OnnxRuntime().open(ModelRequest(entry, root, "target", entry.rows, budget or Budget(), threads=1, taps=taps))


def hidden_states(folder: Path, tokens: list[int]) -> FloatArray:
    """Return what enters the layers, [tokens, 3 · hidden], as transformers computes it."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        states = network(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return np.concatenate([states[layer][0].numpy() for layer in TAPS], axis=-1)


def error(model: LanguageModel, tokens: list[int], wanted: FloatArray) -> float:
    """Return the largest error after a long pass, single rows, a rejected draft and a tree, over the deviation."""
    with closing(model.new_state(128, rows=8, tree=True)) as state:
        assert isinstance(state, FeatureState)
        kept = state.keep_features()
        model.forward(tokens[:40], state, rows="none")
        state.keep(range(40))
        for token in tokens[40:44]:
            model.forward([token], state)
            state.keep([0])
        model.forward([*tokens[44:46], 7, 9], state, rows="all")
        state.keep([0, 1])
        # the path's rows are 0, 2 and 4: each has a sibling that is not kept
        model.forward([tokens[46], 5, tokens[47], 6, tokens[48]], state, parents=[-1, -1, 0, 0, 2], rows="all")
        state.keep([0, 2, 4])
        model.forward(tokens[49:60], state, rows="none")
        state.crop(49)
        model.forward(tokens[49:64], state, rows="none")
        state.keep(range(15))
        assert kept.oldest == 0
        found = np.concatenate([kept.rows(0, 30), kept.rows(30, 64)])
    return float(np.abs(found - wanted).max() / wanted.std())


@pytest.mark.parametrize("family", SHAPES)
def test_features_are_the_hidden_states(family: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", replace(SHAPES[family], layers=8))
    manifest, tokens = export_gguf(model, tmp_path / "pack"), random_tokens(64)
    wanted = hidden_states(model, tokens)
    entry = manifest.models["target"]
    imported(tmp_path / "pack" / entry.gguf, tmp_path / "imported")
    found = {}
    for name in ("imported", "pack")[: 1 if family in ONLY_FILES else 2]:
        root = tmp_path / name
        with closing(open_target(Manifest.load(root).located("target"), root)) as target:
            found[name] = error(target, tokens, wanted)
    print(family, {name: f"{each:.1e}" for name, each in found.items()})
    assert max(found.values()) < EXACT


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelEntry, Path]:
    root = tmp_path_factory.mktemp("target")
    model = write_model(root / "model", TinyModel(layers=8, context=1024))
    return export_gguf(model, root / "pack").models["target"], root / "pack"


def test_a_long_text_keeps_the_features_of_its_end(pack: tuple[ModelEntry, Path]) -> None:
    tokens = random_tokens(1000)
    with closing(open_target(*pack)) as model:
        whole = model.new_state(1000)
        assert isinstance(whole, FeatureState)
        kept = whole.keep_features()
        for start in range(0, 1000, 100):
            model.forward(tokens[start : start + 100], whole, rows="none")
            whole.keep(range(100))
        assert SLOTS // 2 <= 1000 - kept.oldest <= SLOTS
        late = model.new_state(1000)
        assert isinstance(late, FeatureState)
        model.forward(tokens[:900], late, rows="none")
        late.keep(range(900))
        since = late.keep_features()
        assert since is late.keep_features()
        assert since.oldest == 900
        model.forward(tokens[900:], late, rows="none")
        late.keep(range(100))
        np.testing.assert_array_equal(since.rows(900, 1000), kept.rows(900, 1000))
        late.crop(850)
        assert since.oldest == 850


def test_features_change_no_logits_and_are_planned(pack: tuple[ModelEntry, Path]) -> None:
    tokens, logits = random_tokens(20), []
    for taps in ((), TAPS):
        with closing(open_target(*pack, taps=taps)) as model:
            state = model.new_state(32, rows=20)
            if taps:
                assert isinstance(state, FeatureState)
                state.keep_features()
            logits.append(model.forward(tokens, state, rows="all").logits.copy())
    np.testing.assert_array_equal(*logits)
    budget = Budget()
    with closing(open_target(*pack, budget=budget)) as model:
        state, before = model.new_state(32), budget.used_nbytes
        assert isinstance(state, FeatureState)
        state.keep_features()
        assert budget.used_nbytes - before == features_nbytes(3, 64) == 3 * SLOTS * 64 * 4
        state.close()
        assert not [lease for lease in budget.leases if lease.name == "features:target"]


def test_refusals_are_one_line(pack: tuple[ModelEntry, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_target(*pack, taps=())) as model:
        state = model.new_state(8)
        assert isinstance(state, FeatureState)
        with pytest.raises(CapabilityError, match="has no outputs that a drafting head reads"):
            state.keep_features()
    for kernels, taps in (("auto", (0, 4, 5)), ("engine", TAPS)):
        monkeypatch.setenv("EDGEDECODE_KERNELS", kernels)
        with closing(open_target(*pack, taps=taps)) as model:
            state = model.new_state(8)
            assert isinstance(state, FeatureState)
            with pytest.raises(CapabilityError, match="has no outputs that a drafting head reads"):
                state.keep_features()
