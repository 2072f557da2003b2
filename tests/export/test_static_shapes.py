"""Static graphs of the bundled pack on the processor: the base graph's logits, with chains, trees and padding."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import ExportError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.onnx_format.graph_check import Weights, check_graph
from edgedecode.pack.manifest import Manifest

pytest.importorskip("onnx_ir")
import onnx_ir as ir
import onnxruntime

from edgedecode.export.checks.parity import relative_error
from edgedecode.export.graph.passes.static_shapes import StaticSize, static_shapes
from edgedecode.export.graph.passes.table_lookup import plain_lookup
from edgedecode.export.npu.parity_passes import compared_passes
from tests.contract.static_graph import add_static

from .conftest import export, opened, random_tokens, recipe

WIDTH, SLOTS, PAST = 8, 64, 21
TREE = [-1, 0, 0, 1, 1, 2, 5]
"""Parents of the rows of a pass; -1 is the last settled position."""
BOUND = 0.05  # of the logits' deviation; 8-bit activations round differently by the order of sums


def both(role: str, folder: Path, *widths: int) -> tuple[LanguageModel, LanguageModel]:
    """Return the pack's base graph, and static ones of these widths, open."""
    entry = Manifest.load(BUNDLED_PACK).models[role]
    shutil.copytree(BUNDLED_PACK / role, folder / role)
    static = add_static(folder, entry, slots=SLOTS, widths=widths)
    return opened(entry, folder), opened(replace(static, context=SLOTS), folder, "static")


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("parents", [None, TREE, [-1]], ids=["chain", "tree", "one row"])
def test_padded_passes_equal_the_base_graphs(role: str, parents: list[int] | None, tmp_path: Path) -> None:
    tokens, passes = np.random.default_rng(5).integers(3, 8192, PAST + 7).tolist(), []
    count = 7 if parents is None else len(parents)
    for model in both(role, tmp_path, WIDTH):
        state = model.new_state(SLOTS, rows=WIDTH, tree=True)
        model.forward(tokens[:PAST], state, rows="none")
        state.keep(range(PAST))
        first = model.forward(tokens[PAST:][:count], state, parents=parents, rows="all").logits.copy()
        state.keep((0,))
        passes.append((first, model.forward(tokens[:1], state).logits.copy()))  # reads the kept row
    for wanted, found in zip(*passes, strict=True):
        assert relative_error(found, wanted) < BOUND


def test_the_pack_gate_reads_a_static_graph(tmp_path: Path) -> None:
    both("draft", tmp_path, WIDTH)
    weights = Weights("weights.bin", (tmp_path / "draft/weights.bin").stat().st_size)
    found = check_graph(tmp_path / "draft/static-8.onnx", weights)
    assert found.positions == 2048
    assert found.widths == {128}


def test_every_shape_is_static_and_a_wide_pass_has_one_row_of_logits(tmp_path: Path) -> None:
    both("draft", tmp_path, 1, 16, 32)
    for width, rows in ((1, 1), (16, 16), (32, 1)):
        path = tmp_path / f"draft/static-{width}.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
        assert all(isinstance(part, int) for shape in shapes.values() for part in shape)
        assert shapes["logits"] == [rows, 8192]
        assert shapes["attention_mask"] == [1, 1, width, SLOTS + width]
        assert shapes["present.0.key"] == [1, 1, width, 64]
        assert list(shapes)[:4] == ["input_ids", "position_ids", "attention_mask", "rows"]


def test_a_wide_pass_returns_the_row_that_was_asked_for(tmp_path: Path) -> None:
    tokens = list(range(40, 60))
    wanted, found = (
        model.forward(tokens, model.new_state(SLOTS), rows="last").logits for model in both("draft", tmp_path, 1, 32)
    )
    assert relative_error(found, wanted) < BOUND


@pytest.mark.export
@pytest.mark.parametrize(("bits", "head_bits"), [(4, 8), (4, 4), (16, 16)])
def test_static_graphs_of_other_widths_and_with_the_npus_lookup_equal_the_base_graph(
    bits: int, head_bits: int, llama: Path, tmp_path: Path
) -> None:
    entry = export(llama, tmp_path / "pack", stored=recipe(bits, head_bits=head_bits)).models["target"]
    static = add_static(tmp_path / "pack", entry, slots=SLOTS, widths=[WIDTH])
    model = ir.load(path := tmp_path / "pack/target/static-8.onnx")
    plain_lookup(model, width=WIDTH)
    ir.save(model, path)
    base, fixed = opened(entry, tmp_path / "pack"), opened(static, tmp_path / "pack", "static")
    for wanted, found in compared_passes(base, fixed, random_tokens(60), width=WIDTH, count=8):
        assert relative_error(found, wanted) < BOUND


def test_graphs_that_have_no_static_form_are_refused() -> None:
    with pytest.raises(ExportError, match="8-bit keys"):
        static_shapes(ir.load(BUNDLED_PACK / "draft" / "kv8.onnx"), StaticSize(WIDTH, SLOTS))
    with pytest.raises(ExportError, match="rank"):
        static_shapes(ir.load(BUNDLED_PACK / "draft" / "lora.onnx"), StaticSize(WIDTH, SLOTS))
