"""Static graphs of every architecture equal their base graphs, beyond every window: chains, trees, float weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from edgedecode.export.graph.passes.static_shapes import StaticSize, static_shapes
from edgedecode.export.graph.passes.table_lookup import plain_lookup
from edgedecode.export.npu.parity_passes import BasePasses, StaticPasses, text_passes

from .conftest import export, recipe
from .test_architectures import SHAPES, random_tokens
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

WIDTH, SLOTS = 8, 96
CPU = ["CPUExecutionProvider"]


def both(folder: Path, *, window: int) -> tuple[BasePasses, StaticPasses]:
    """Make the static graph in the folder of a base graph and open both."""
    model = ir.load(folder / "base.onnx")
    static_shapes(model, StaticSize(WIDTH, SLOTS))
    plain_lookup(model, width=WIDTH)
    ir.save(model, folder / "static.onnx")
    base = BasePasses(onnxruntime.InferenceSession(folder / "base.onnx", providers=CPU), window=window)
    return base, StaticPasses(onnxruntime.InferenceSession(folder / "static.onnx", providers=CPU), window=window)


@pytest.mark.parametrize("name", [*SHAPES, "llama"])
def test_a_static_graph_of_floats_equals_the_base_graph(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SHAPES.get(name, TinyModel()))
    entry = export(folder, tmp_path / "pack", stored=recipe(32)).models["target"]
    base, static = both(tmp_path / "pack" / "target", window=entry.window)
    for one in text_passes(random_tokens(90), width=WIDTH, count=14):
        wanted, found = base.run(one), static.run(one)
        assert np.abs(wanted - found).max() < 1e-4 * max(1.0, float(wanted.std()))
    assert static.past.shape[2] > 2 * entry.window


@pytest.mark.parametrize(("bits", "head_bits"), [(4, 8), (4, 4), (16, 16)])
def test_a_static_graph_of_other_widths_equals_the_base_graph(bits: int, head_bits: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel())
    export(folder, tmp_path / "pack", stored=recipe(bits, head_bits=head_bits))
    base, static = both(tmp_path / "pack" / "target", window=0)
    for one in text_passes(random_tokens(60), width=WIDTH, count=8):
        wanted, found = base.run(one), static.run(one)
        assert np.abs(wanted - found).max() < 0.05 * wanted.std()
