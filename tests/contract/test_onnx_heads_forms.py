"""Heads of other exporters: zero points, a bias inside the product, a bias and a soft cap after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from edgedecode.errors import ExportError
from edgedecode.pack.manifest import ModelEntry
from tests.contract.toy_graph import WEIGHTS, ToyShape, write_toy
from tests.contract.toy_heads import KEPT, add_heads, open_headed

TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 128, 60)]
DRAW = np.random.default_rng(1)
BIAS = DRAW.standard_normal(128).astype(np.float32)
Change = Callable[[onnx.GraphProto], None]


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
    width = 2 * bits // 8
    points = DRAW.integers(0, 256, (128, width), dtype=np.uint8)
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
def test_trimmed_head_keeps_zero_points_bias_and_soft_cap(tmp_path: Path, bits: int, change: Change) -> None:
    entry = add_heads(changed(tmp_path, ToyShape(bits=bits), change), tmp_path)
    model = open_headed(entry, tmp_path)
    trimmed, state = model.trimmed, model.new_state(60)
    assert trimmed is not None
    plain = open_headed(
        add_heads(write_toy(tmp_path / "plain", ToyShape(bits=bits)), tmp_path / "plain"), tmp_path / "plain"
    )
    whole = model.forward(TOKENS, state, rows="all").logits.copy()
    before = plain.forward(TOKENS, plain.new_state(60), rows="all").logits
    assert np.abs(whole - before).max() > 1, "the change must have an effect"
    state.crop(0)
    found = trimmed.forward(TOKENS, state, rows="all").logits.copy()
    np.testing.assert_allclose(found, whole[:, KEPT], rtol=0, atol=1e-4)
    model.close()
    plain.close()


def reordered(graph: onnx.GraphProto) -> None:
    add_input(graph, 4, "order", np.zeros(64, np.int32))


def float_zero_points(graph: onnx.GraphProto) -> None:
    add_input(graph, 3, "zeros", np.zeros((128, 2), np.float32))


def mixed_up(graph: onnx.GraphProto) -> None:
    graph.node[-1].output[0] = "product"
    graph.node.append(helper.make_node("Add", ["product", "rows_of_another"], ["logits"]))
    graph.node.append(helper.make_node("Cast", ["rows"], ["rows_of_another"], to=1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (reordered, "has reordered columns"),
        (float_zero_points, "is stored as"),
        (mixed_up, "combines its logits with non-constant values"),
    ],
)
def test_add_heads_refuses_a_head_that_cannot_be_cut_in_one_line(tmp_path: Path, change: Change, words: str) -> None:
    entry = changed(tmp_path, ToyShape(bits=8), change)
    with pytest.raises(ExportError, match=words) as caught:
        add_heads(entry, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "heads.onnx").exists()
