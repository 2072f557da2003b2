"""Builds a model's graph "heads": the body of its base graph with two heads, the full one and a trimmed one.

The graph uses the same weights file. The trimmed head's rows are copied from the full head's, bit for bit, into the
graph's own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Graph, ModelEntry

from ..frameworks import reason_of
from ..graph.passes.surgery import insert_before
from .head_layout import FoundHead, StoredArray, find_head, is_wide

HEADS = "heads"
"""The graph's name in a model's manifest entry, and its file's stem."""
_TRIM, _CONCAT = "trim", "concat"


def write_heads(base: Graph, entry: ModelEntry, root: Path, *, out: Path, ids: IntArray) -> Graph:
    """Write the graph of a model of the pack at `root` to the file `out`; return its manifest entry.

    base: the graph to add a head to. ids: the ids that the trimmed head keeps, ascending.
    The entry's `file` is next to the base graph, wherever `out` is. Only the kept rows of the weights are read.
    With a multiple of 32 ids, the logits equal the full head's bit for bit; kernels round partial tiles differently.
    Raises ExportError if the head cannot be trimmed, InputError if `ids` is not a subset of the vocabulary.
    """
    if _CONCAT in base.capabilities:
        raise ExportError(f"{base.file} concatenates its KV cache itself: only graphs made by `export` can be trimmed")
    model = _read(root / base.file)
    weights = root / entry.weights
    head = find_head(model, name=base.file, weights=weights)
    if (head.layout.rows, head.layout.columns) != (entry.rows, entry.hidden_size):
        raise ExportError(
            f"the head of {base.file} is {head.layout.rows} by {head.layout.columns}, the manifest says "
            f"{entry.rows} by {entry.hidden_size}: export the pack again"
        )
    _GraphEditor(model, head, weights=weights).add_trimmed(TrimmedVocabulary(ids, entry.rows).ids)
    _write(model, out)
    return replace(
        base,
        file=PurePosixPath(base.file).with_name(f"{HEADS}.onnx").as_posix(),
        inputs=tuple(str(value.name) for value in model.graph.inputs),
        outputs=tuple(str(value.name) for value in model.graph.outputs),
        capabilities=(*base.capabilities, _TRIM),
    )


class _GraphEditor:
    """Adds a head to a graph. The input `heads` is the number of selected positions that each of the two heads gets."""

    def __init__(self, model: ir.Model, head: FoundHead, *, weights: Path) -> None:
        self._graph, self._head, self._weights = model.graph, head, weights
        self._rows = head.layout.rows
        self._logits = next(value for value in model.graph.outputs if value.name == "logits")
        counts = self._input("heads", ir.DataType.INT64, [2])
        hidden = head.hidden
        split = ir.node("Split", [hidden, counts], {"axis": 0}, num_outputs=2, name="/heads/Split")
        insert_before(head.node, split)
        self._parts = split.outputs
        for part, letter in zip(self._parts, "WT", strict=True):
            part.name = f"/heads/hidden.{letter}"
            part.type, part.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([letter, head.layout.columns])
        head.node.replace_input_with(0, self._parts[0])
        for output in (node.outputs[0] for node in (head.node, *head.tail)):
            if output.shape is not None:
                output.shape = ir.Shape(["W", self._rows])

    def add_trimmed(self, ids: IntArray) -> None:
        """Add a head that keeps `ids`."""
        node, layout = self._head.node, self._head.layout
        kept = self._initializer("/trim/ids", ids.astype(np.int64)) if self._wide else None
        bias = self._head.bias
        attributes = {name: attribute for name, attribute in node.attributes.items() if name != "N"}
        if node.op_type == "MatMulNBits":
            attributes["N"] = ir.AttrInt64("N", len(ids))
        inputs: list[ir.Value | None] = [self._parts[1], self._cut("values", layout.values, ids)]
        if layout.scales is not None:
            zeros = layout.zero_points
            inputs.append(self._cut("scales", layout.scales, ids))
            inputs += [None if zeros is None else self._cut("zero_points", zeros, ids), None]
        elif layout.bits == 16:
            inputs[1] = self._add(ir.node("Cast", [inputs[1]], {"to": ir.DataType.FLOAT}, name="/trim/Cast"))
        if bias is not None:
            inputs.append(self._picked(bias, kept))
        while inputs[-1] is None:
            inputs.pop()
        product = ir.Node(node.domain, node.op_type, inputs, attributes, name="/trim/head")
        self._finish(self._add(product), kept, size=len(ids))

    @property
    def _wide(self) -> bool:
        """Whether the bias, or a constant after the product, has one element per id."""
        constants = [self._head.bias, *(value for node in self._head.tail for value in node.inputs[1:])]
        return any(value is not None and is_wide(value, self._rows) for value in constants)

    def _finish(self, value: ir.Value, ids: ir.Value | None, *, size: int) -> None:
        """Repeat the full head's tail after the trimmed head, and output its logits."""
        for node in self._head.tail:
            inputs = [value, *(self._picked(constant, ids) for constant in node.inputs[1:])]
            value = self._add(ir.Node(node.domain, node.op_type, inputs, node.attributes, name=f"{node.name}/{_TRIM}"))
        value.name, value.type, value.shape = f"{_TRIM}_logits", self._logits.type, ir.Shape(["T", size])
        self._graph.outputs.insert(self._graph.outputs.index(self._logits) + 1, value)

    def _picked(self, value: ir.Value | None, ids: ir.Value | None) -> ir.Value | None:
        """Return a constant for the kept ids: their elements if it has one per id, else the constant unchanged."""
        if value is None or not is_wide(value, self._rows):
            return value
        assert ids is not None
        return self._add(ir.node("Gather", [value, ids], {"axis": -1}, name=f"/{_TRIM}/picked/{value.name}"))

    def _cut(self, name: str, stored: StoredArray, ids: IntArray) -> ir.Value:
        """Return the stored rows of these ids as an initializer, in the shape that the head's node expects."""
        array = stored.open(self._weights)
        layout = self._head.layout
        if name == "values" and layout.block_size:
            array = array.reshape(self._rows, layout.columns // layout.block_size, -1)
        cut = array[:, ids] if layout.transposed else array[ids]
        return self._initializer(f"/trim/{name}", np.ascontiguousarray(cut))

    def _initializer(self, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """Add an input before the keys and values."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        inputs = self._graph.inputs
        place = next((i for i, each in enumerate(inputs) if str(each.name).startswith("past_key_values.")), len(inputs))
        inputs.insert(place, value)
        return value

    def _add(self, node: ir.Node) -> ir.Value:
        self._graph.append(node)
        return node.outputs[0]


def _read(path: Path) -> ir.Model:
    try:
        return ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise various types
        raise ExportError(
            f"{path} is not a valid graph ({reason_of(error)}): export or import the pack again"
        ) from None


def _write(model: ir.Model, out: Path) -> None:
    try:
        ir.save(model, out)
    except OSError as error:
        raise ExportError(f"{out} cannot be written: {error.strerror or error}") from None
