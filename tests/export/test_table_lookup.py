"""The embedding's lookup in operators of NPUs equals the engine's own, bit for bit."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from edgedecode.errors import ExportError
from edgedecode.export.graph.passes.table_lookup import plain_lookup

ROWS, COLUMNS, BLOCK, WIDTH = 50, 64, 32, 8


def lookup(path: Path, *, bits: int) -> ir.Model:
    """Write a graph that only looks up rows of a random table."""
    rng = np.random.default_rng(bits)
    packed = rng.integers(0, 256, (ROWS, COLUMNS * bits // 8), dtype=np.uint8)
    scales = rng.standard_normal((ROWS, COLUMNS // BLOCK)).astype(np.float32)
    node = helper.make_node(
        "GatherBlockQuantized",
        ["table", "input_ids", "scales"],
        ["rows"],
        domain="com.microsoft",
        bits=bits,
        block_size=BLOCK,
        gather_axis=0,
        quantize_axis=1,
    )
    graph = helper.make_graph(
        [node],
        "lookup",
        [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [1, WIDTH])],
        [helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, [1, WIDTH, COLUMNS])],
        [numpy_helper.from_array(packed, "table"), numpy_helper.from_array(scales, "scales")],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return ir.load(path)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_plain_lookup_equals_the_engines(bits: int, tmp_path: Path) -> None:
    model = lookup(tmp_path / "fused.onnx", bits=bits)
    plain_lookup(model, width=WIDTH)
    ir.save(model, tmp_path / "plain.onnx")
    assert not any(node.domain for node in model.graph)
    ids = np.random.default_rng(1).integers(0, ROWS, (1, WIDTH))
    wanted, found = (
        onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"]).run(None, {"input_ids": ids})
        for name in ("fused.onnx", "plain.onnx")
    )
    assert np.array_equal(wanted[0], found[0])


def test_a_table_with_zero_points_is_refused(tmp_path: Path) -> None:
    model = lookup(tmp_path / "fused.onnx", bits=8)
    node = next(iter(model.graph))
    node.resize_inputs(4)
    node.replace_input_with(3, node.inputs[2])
    with pytest.raises(ExportError, match="zero points"):
        plain_lookup(model, width=WIDTH)
