"""The graph of a trimmed draft: the full graph's logits of the kept ids, in every form of head, and its refusals."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from edgedecode.arrays import IntArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import ExportError, InputError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.pack.token_map import write_token_ids
from tests.contract.conftest import open_entry
from tests.contract.reference import TOLERANCE
from tests.contract.toy_graph import WEIGHTS, ToyShape, write_toy

pytest.importorskip("onnx_ir", reason="onnx_ir, which trims the graph, is not installed")
from edgedecode.export.trim.trimmed_graph import write_trimmed

MAP = "trim.ids"
KEPT: IntArray = np.sort(np.random.default_rng(11).permutation(128)[:37]).astype(np.int64)
"""An odd number of ids, so that no kernel's tile comes out even."""
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 128, 60)]
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]
SHAPES = {
    "float": ToyShape(),
    "int8": ToyShape(bits=8),
    "int4": ToyShape(bits=4),
    "int4 block 16": ToyShape(bits=4, block=16),
}
DRAW = np.random.default_rng(1)
BIAS = DRAW.standard_normal(128).astype(np.float32)
Change = Callable[[onnx.GraphProto], None]


def trim(entry: ModelEntry, folder: Path, *, ids: IntArray = KEPT) -> ModelEntry:
    """Write the trimmed graph of a toy and its map, and return its entry."""
    graph = write_trimmed(entry.graphs["base"], entry, folder, out=folder / "trim.onnx", ids=ids)
    write_token_ids(folder / MAP, ids)
    return replace(entry, rows=len(ids), graphs={"base": replace(graph, file="trim.onnx", token_ids=MAP)})


def opened(entry: ModelEntry, folder: Path, *, size: int = 128, budget: Budget | None = None) -> LanguageModel:
    """Open a trimmed entry of a toy of `size` ids."""
    from edgedecode.engines.interface import ModelRequest
    from edgedecode.runtimes.onnx import OnnxRuntime

    return OnnxRuntime().open(ModelRequest(entry, folder, "trim", size, budget or Budget(), threads=1))


def compare(entry: ModelEntry, folder: Path, *, ids: IntArray = KEPT, exact: bool = False) -> None:
    """Compare both graphs on chains of several widths and a growing tree, by rows of all kinds."""
    full = open_entry(entry, folder, budget=Budget())
    trimmed = opened(trim(entry, folder, ids=ids), folder, size=entry.rows)
    assert trimmed.card.token_ids is not None
    assert np.array_equal(trimmed.card.token_ids, ids)
    assert (trimmed.card.rows, trimmed.card.vocabulary_size) == (len(ids), entry.rows)
    states = full.new_state(100), trimmed.new_state(100)

    def both(tokens: list[int], **how: object) -> None:
        expected, found = (
            model.forward(tokens, state, **how).logits.copy()  # type: ignore[arg-type]
            for model, state in zip((full, trimmed), states, strict=True)
        )
        assert np.array_equal(found, expected[:, ids]) or not exact
        np.testing.assert_allclose(found, expected[:, ids], rtol=0, atol=TOLERANCE)

    start = 0
    for width in (1, 2, 3, 7, 20):
        both(TOKENS[start : start + width], rows="all")
        for state in states:
            state.keep(range(width))
        start += width
    both(TOKENS[:9], rows=[8, 0, 3])
    for state in states:
        state.crop(20)
    for first, last in ((0, 1), (1, 4), (4, 10)):
        both(TOKENS[50 + first : 50 + last], parents=PARENTS[first:last], rows="all")
    full.close()
    trimmed.close()


@pytest.mark.parametrize("name", SHAPES)
def test_trimmed_graph_has_the_full_graphs_logits(tmp_path: Path, name: str) -> None:
    compare(write_toy(tmp_path, SHAPES[name]), tmp_path)


@pytest.mark.usefixtures("engine_kernels")
def test_trimmed_graph_on_the_engines_kernels(tmp_path: Path) -> None:
    compare(write_toy(tmp_path, ToyShape(bits=8)), tmp_path)


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 128), (32, 32)])
def test_trimmed_logits_with_full_tiles_are_bit_identical(tmp_path: Path, bits: int, block: int) -> None:
    """Kernels process columns in tiles and may round the rest differently, so sizes are multiples of a tile."""
    shape = ToyShape(hidden=256, head_size=64, mlp=384, rows=512, bits=bits, block=block)
    ids = np.sort(np.random.default_rng(4).permutation(512)[:96])
    compare(write_toy(tmp_path, shape), tmp_path, ids=ids, exact=True)


def test_trimmed_file_holds_the_kept_rows_bit_for_bit_and_no_others(tmp_path: Path) -> None:
    entry = write_toy(tmp_path, ToyShape(bits=8))
    trim(entry, tmp_path)
    base = {tensor.name: tensor for tensor in onnx.load(tmp_path / "base.onnx").graph.initializer}
    graph = onnx.load(tmp_path / "trim.onnx", load_external_data=False).graph
    inside = {each.name: each for each in graph.initializer if each.data_location != onnx.TensorProto.EXTERNAL}
    for name in ("head.packed", "head.scales"):
        full, cut = numpy_helper.to_array(base[name]), numpy_helper.to_array(inside.pop(f"{name}/trim"))
        assert cut.tobytes() == full.reshape(128, -1)[KEPT].tobytes()
    assert sum(len(each.raw_data) for each in inside.values()) < 256
    assert {each.name for each in graph.initializer}.isdisjoint({"head.packed", "head.scales"})


def changed(folder: Path, shape: ToyShape, change: Change) -> ModelEntry:
    """Write a toy with another head, all large tensors again in the weights file."""
    entry = write_toy(folder, shape)
    model = onnx.load(folder / "base.onnx")
    change(model.graph)
    (folder / WEIGHTS).unlink()
    convert_model_to_external_data(model, location=WEIGHTS, size_threshold=64)
    onnx.save(model, folder / "base.onnx")
    return entry


def add_input(graph: onnx.GraphProto, index: int, name: str, value: np.ndarray) -> None:
    """Give the head's node one more constant input."""
    head = graph.node[-1]
    head.input.extend([""] * (index + 1 - len(head.input)))
    head.input[index] = name
    graph.initializer.append(numpy_helper.from_array(value, name))


def zero_points(bits: int) -> Change:
    points = DRAW.integers(0, 256, (128, 2 * bits // 8), dtype=np.uint8)
    return lambda graph: add_input(graph, 3, "zeros", points)


def flat_zero_points(graph: onnx.GraphProto) -> None:
    add_input(graph, 3, "zeros", DRAW.integers(0, 256, 128 * 2, dtype=np.uint8))


def inner_bias(graph: onnx.GraphProto) -> None:
    add_input(graph, 5, "bias", BIAS)


def capped(graph: onnx.GraphProto) -> None:
    graph.node[-1].output[0] = "product"
    graph.initializer.extend(
        [numpy_helper.from_array(BIAS, "bias"), numpy_helper.from_array(np.array(3, np.float32), "cap")]
    )
    for kind, inputs, output in (
        ("Add", ["product", "bias"], "biased"),
        ("Div", ["biased", "cap"], "small"),
        ("Tanh", ["small"], "capped"),
        ("Mul", ["capped", "cap"], "logits"),
    ):
        graph.node.append(helper.make_node(kind, inputs, [output], name=f"/{kind}"))


@pytest.mark.parametrize(
    ("bits", "change"),
    [
        (4, zero_points(4)),
        (8, zero_points(8)),
        (8, flat_zero_points),
        (8, inner_bias),
        (4, inner_bias),
        (8, capped),
        (32, capped),
    ],
    ids=["zeros 4", "zeros 8", "flat zeros 8", "bias 8", "bias 4", "capped 8", "capped"],
)
def test_trimmed_graph_keeps_zero_points_bias_and_soft_cap(tmp_path: Path, bits: int, change: Change) -> None:
    compare(changed(tmp_path, ToyShape(bits=bits), change), tmp_path)


def test_trimmed_graph_with_weights_in_another_folder(tmp_path: Path) -> None:
    entry = write_toy(tmp_path, ToyShape(bits=8))
    elsewhere = tmp_path / "elsewhere" / WEIGHTS
    elsewhere.parent.mkdir()
    (tmp_path / WEIGHTS).rename(elsewhere)
    compare(replace(entry, weights=str(elsewhere)), tmp_path)


def reordered(graph: onnx.GraphProto) -> None:
    add_input(graph, 4, "order", np.zeros(64, np.int32))


def mixed_up(graph: onnx.GraphProto) -> None:
    graph.node[-1].output[0] = "product"
    graph.node.append(helper.make_node("Add", ["product", "rows_of_another"], ["logits"]))
    graph.node.append(helper.make_node("Cast", ["rows"], ["rows_of_another"], to=1))


def another_operator(graph: onnx.GraphProto) -> None:
    graph.node[-1].op_type, graph.node[-1].domain = "MatMulFloat", "com.example"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (reordered, "has reordered columns"),
        (mixed_up, "combines its logits with values that are not constant"),
        (another_operator, "not come from a matrix product"),
    ],
)
def test_a_head_that_cannot_be_cut_is_refused_in_one_line(tmp_path: Path, change: Change, words: str) -> None:
    entry = changed(tmp_path, ToyShape(bits=8), change)
    with pytest.raises(ExportError, match=words) as caught:
        trim(entry, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "trim.onnx").exists()


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    entry = write_toy(tmp_path, ToyShape(bits=8))
    with pytest.raises(ExportError, match="128 rows instead of 130"):
        trim(replace(entry, rows=130), tmp_path)
    with pytest.raises(ExportError, match="only graphs made by `export` can be trimmed"):
        trim(replace(entry, graphs={"base": replace(entry.graphs["base"], capabilities=("concat",))}), tmp_path)
    (tmp_path / "base.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportError, match="is not a valid graph"):
        trim(entry, tmp_path)


@pytest.mark.parametrize("ids", [[], [3, 2], [3, 3], [-1, 2], [5, 128]], ids=str)
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(InputError, match="must ascend, from 0 to below 128"):
        trim(write_toy(tmp_path, ToyShape(bits=8)), tmp_path, ids=np.array(ids, np.int64))
    assert not (tmp_path / "trim.onnx").exists()


def test_a_map_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    entry = trim(write_toy(tmp_path, ToyShape(bits=8)), tmp_path)

    def refused(entry: ModelEntry) -> str:
        budget = Budget()
        with pytest.raises(ManifestError) as caught:
            opened(entry, tmp_path, budget=budget)
        assert "\n" not in str(caught.value)
        assert budget.leases == ()
        return str(caught.value)

    assert f"maps {len(KEPT)} rows" in refused(replace(entry, rows=len(KEPT) + 1))
    write_token_ids(tmp_path / MAP, np.append(KEPT[:-1], 128))
    assert "does not fit the draft" in refused(entry)
    write_token_ids(tmp_path / MAP, KEPT[:-1])
    assert f"has {len(KEPT)} rows, " in refused(replace(entry, rows=len(KEPT) - 1))
    (tmp_path / MAP).unlink()
    assert "cannot be read" in refused(entry)
    shutil.copyfile(tmp_path / "base.onnx", tmp_path / "trim.onnx")
    write_token_ids(tmp_path / MAP, KEPT)
    assert "has 128 rows, " in refused(entry)
