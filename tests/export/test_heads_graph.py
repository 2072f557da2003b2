"""The graph "heads" of real architectures: its logits are the base graph's logits of the kept ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgedecode.decoding.model import HeadedModel, LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.export.trim.head_layout import find_head
from edgedecode.export.trim.heads_graph import write_heads
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import TrimEntry
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.token_map import write_token_ids

from .conftest import export, recipe
from .test_architectures import SHAPES as ARCHITECTURES
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

SHAPES = {
    "llama": TinyModel(),
    "llama tied": TinyModel(tied=True),
    "qwen2": TinyModel(family="qwen2"),
    "qwen2 tied": TinyModel(family="qwen2", tied=True),
    "qwen3": TinyModel(family="qwen3"),
    **{name: ARCHITECTURES[name] for name in ("gemma2", "gemma3", "granite", "granite tied float16", "phi3")},
}
BITS = (4, 8, 16, 32)
TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, 320, 60)]
IDS = np.sort(np.random.default_rng(2).permutation(320)[:77])


@pytest.fixture(scope="module", params=SHAPES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", SHAPES[request.param])


@pytest.fixture(scope="module", params=BITS)
def pack(request: pytest.FixtureRequest, source: Path) -> Path:
    out = source.parent / f"pack{request.param}"
    export(source, out, stored=recipe(request.param, head_bits=request.param))
    return out


@pytest.fixture(scope="module")
def entry(pack: Path) -> ModelEntry:
    entry = Manifest.load(pack).models["target"]
    graph = write_heads(entry.graphs["base"], entry, pack, out=pack / "target/heads.onnx", ids=IDS)
    write_token_ids(pack / "target/trim.ids", IDS)
    trim = TrimEntry(size=len(IDS), token_ids="target/trim.ids")
    return replace(entry, graphs={**entry.graphs, "heads": graph}, trim=trim)


def open_graph(entry: ModelEntry, pack: Path, *needs: str) -> LanguageModel:
    return find_runtime("onnx").open(
        ModelRequest(
            entry, pack, name="target", vocabulary_size=320, budget=Budget(), threads=1, provider="cpu", needs=needs
        )
    )


def test_heads_graph_logits_match_the_base_graph(entry: ModelEntry, pack: Path) -> None:
    base, model = open_graph(entry, pack), open_graph(entry, pack, "trim")
    assert isinstance(model, HeadedModel)
    trimmed, state = model.trimmed, model.new_state(60)
    assert trimmed is not None
    expected = base.forward(TOKENS, base.new_state(60), rows="all").logits.copy()
    assert np.array_equal(model.forward(TOKENS, state, rows="all").logits, expected)
    state.crop(0)
    found = trimmed.forward(TOKENS, state, rows="all").logits.copy()
    np.testing.assert_allclose(found, expected[:, IDS], rtol=0, atol=1e-5)
    assert expected.std() > 0.1
    base.close()
    model.close()


def test_heads_graph_file_contains_only_the_kept_rows(entry: ModelEntry, pack: Path) -> None:
    model = onnx.load(pack / entry.graphs["heads"].file, load_external_data=False)
    inside = {
        tensor.name: len(tensor.raw_data)
        for tensor in model.graph.initializer
        if tensor.data_location != onnx.TensorProto.EXTERNAL
    }
    row = 64 * entry.head_bits // 8
    expected = {"/trim/values": row * len(IDS)}
    if entry.head_bits < 16:
        expected["/trim/scales"] = 64 // 32 * 4 * len(IDS)
    assert {name: size for name, size in inside.items() if name.startswith("/trim/")} == expected
    assert sum(size for name, size in inside.items() if name not in expected) < 256
    base = entry.graphs["base"].file
    layout = find_head(ir.load(pack / base), name=base, weights=pack / entry.weights).layout
    (kept,) = [tensor.raw_data for tensor in model.graph.initializer if tensor.name == "/trim/values"]
    assert kept == layout.values.open(pack / entry.weights)[IDS].tobytes()
    assert (layout.rows, layout.columns, layout.bits) == (entry.rows, 64, entry.head_bits)
