"""Finds a graph's LM head: its matrix product, the nodes after it, and where the weights file stores its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgedecode.errors import ExportError

from ..graph.passes.picked_rows import head_of

Numbers: TypeAlias = npt.NDArray[Any]

_KINDS = {ir.DataType.UINT8: "uint8", ir.DataType.FLOAT16: "float16", ir.DataType.FLOAT: "float32"}
_VALUES, _SCALES, _ZERO_POINTS, _ORDER, _BIAS = 1, 2, 3, 4, 5  # inputs of MatMulNBits


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array stored in a weights file; `kind` is uint8, float16 or float32."""

    kind: str
    offset: int
    shape: tuple[int, int]

    def open(self, weights: Path) -> Numbers:
        """Map the array, read-only. Raises ExportError if the file is too short or unreadable."""
        try:
            return np.asarray(np.memmap(weights, self.kind, mode="r", offset=self.offset, shape=self.shape))
        except (OSError, OverflowError, ValueError) as error:
            raise ExportError(f"{weights} does not hold the head ({error}): export or import the pack again") from None


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """A head with one row per id and one column per element of the hidden state.

    Quantized: `values` are uint8 [rows, columns · bits / 8], `scales` are [rows, blocks], `zero_points` are uint8
    [rows, bytes], or None for the middle of the range. Float: `values` are [rows, columns], or [columns, rows] if
    `transposed`.
    """

    rows: int
    columns: int
    bits: int
    block_size: int
    """0 for float weights."""
    values: StoredArray
    scales: StoredArray | None = None
    zero_points: StoredArray | None = None
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class FoundHead:
    """The head of a graph that computes logits for selected positions only."""

    node: ir.Node
    tail: tuple[ir.Node, ...]
    """The nodes between the product and the logits, in order: scaling, soft cap, cast."""
    layout: HeadLayout

    @property
    def hidden(self) -> ir.Value:
        """The head's input: the last hidden states of the selected positions."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def bias(self) -> ir.Value | None:
        """The bias added to the product, if any."""
        place = {"MatMulNBits": _BIAS, "Gemm": 2}.get(self.node.op_type, len(self.node.inputs))
        return _input(self.node, place)


def find_head(model: ir.Model, *, name: str, weights: PurePath) -> FoundHead:
    """Return the head of a graph whose weights are stored in the file `weights`; `name` names the graph in errors.

    Raises ExportError if the head has an unsupported form.
    """
    if not any(value.name == "rows" for value in model.graph.inputs):
        raise ExportError(
            f"{name} computes logits for every position: its head cannot be trimmed; export the model again"
        )
    node = head_of(model)
    hidden = node.inputs[0]
    if hidden is None or hidden.dtype not in (None, ir.DataType.FLOAT):
        raise ExportError(f"{name} has a head whose input is not float32: unsupported")
    return FoundHead(node, _tail(model, node, name), _Layouts(name, weights.name).of(node))


def is_wide(value: ir.Value, rows: int) -> bool:
    """Return whether a constant has one element per id."""
    producer = value.producer()
    if producer is not None and "value" in producer.attributes:
        shape = tuple(producer.attributes["value"].as_tensor().shape)
    else:
        shape = () if value.shape is None else tuple(value.shape)
    return bool(shape) and shape[-1] == rows


@dataclass(frozen=True, slots=True)
class _Layouts:
    """Reads from a head's node how its rows are stored."""

    name: str
    weights: str
    """Name of the only weights file supported, as the graph spells it; the engine looks it up in the graph's folder."""

    def of(self, node: ir.Node) -> HeadLayout:
        if node.op_type == "MatMulNBits":
            return self._blocks(node)
        attributes = node.attributes
        plain = not attributes.get_int("transA", 0) and all(
            attributes.get_float(part, 1.0) == 1.0 for part in ("alpha", "beta")
        )
        if not plain:
            raise self._unsupported("scales or transposes its input")
        return self._floats(node, transposed=not attributes.get_int("transB", 0))

    def _blocks(self, node: ir.Node) -> HeadLayout:
        attributes = node.attributes
        rows, columns = attributes.get_int("N", 0), attributes.get_int("K", 0)
        bits, block = attributes.get_int("bits", 4), attributes.get_int("block_size", 0)
        if _input(node, _ORDER) is not None:
            raise self._unsupported("has reordered columns")
        if bits not in (4, 8) or not block or columns % block:
            raise self._unsupported(f"has blocks of {block} weights of {bits} bits in rows of {columns}")
        blocks, zeros = columns // block, _input(node, _ZERO_POINTS)
        scales = self._stored(_input(node, _SCALES), (rows, blocks), kinds=("float16", "float32"))
        values = self._stored(_input(node, _VALUES), (rows, columns * bits // 8), kinds=("uint8",))
        zero_points = None
        if zeros is not None:
            zero_points = self._stored(zeros, (rows, -(-blocks * bits // 8)), kinds=("uint8",))
        return HeadLayout(rows, columns, bits, block, values, scales, zero_points)

    def _floats(self, node: ir.Node, *, transposed: bool) -> HeadLayout:
        value = _input(node, 1)
        if value is not None and (cast := value.producer()) is not None and cast.op_type == "Cast":
            value = _input(cast, 0)
        shape = None if value is None or value.shape is None else tuple(value.shape)
        if shape is None or len(shape) != 2 or not all(isinstance(size, int) for size in shape):
            raise self._unsupported("has weights of unknown shape")
        first, second = (int(str(size)) for size in shape)
        rows, columns = (second, first) if transposed else (first, second)
        values = self._stored(value, (first, second), kinds=("float16", "float32"))
        bits = 16 if values.kind == "float16" else 32
        return HeadLayout(rows, columns, bits, 0, values, transposed=transposed)

    def _stored(self, value: ir.Value | None, shape: tuple[int, int], *, kinds: tuple[str, ...]) -> StoredArray:
        """Return where an initializer is stored in the weights file, as an array of this shape."""
        tensor = None if value is None else value.const_value
        if not isinstance(tensor, ir.ExternalTensor) or PurePath(tensor.location) != PurePath(self.weights):
            raise self._unsupported("is not stored in the model's weights file")
        kind = _KINDS.get(tensor.dtype, "")
        if kind not in kinds:
            raise self._unsupported(f"is stored as {tensor.dtype}")
        if tensor.size != shape[0] * shape[1]:
            raise self._unsupported(f"has {tensor.size} stored elements instead of {shape[0] * shape[1]}")
        return StoredArray(kind, tensor.offset or 0, shape)

    def _unsupported(self, what: str) -> ExportError:
        return ExportError(f"the head of {self.name} {what}: it cannot be trimmed")


def _tail(model: ir.Model, head: ir.Node, name: str) -> tuple[ir.Node, ...]:
    """Return the nodes from the head's product to the logits, whose other inputs must all be constants."""
    value = next(value for value in model.graph.outputs if value.name == "logits")
    found: list[ir.Node] = []
    while (node := value.producer()) is not head:
        if node is None or node.inputs[0] is None or not all(map(_is_constant, node.inputs[1:])):
            raise ExportError(f"{name} combines its logits with non-constant values: its head cannot be trimmed")
        found.append(node)
        value = node.inputs[0]
    return tuple(reversed(found))


def _is_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_initializer():
        return True
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None
