"""Finds a graph's head: the product that makes the logits, what follows it, where its rows lie. Loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgedecode.errors import ExportError

from ..graph.passes.picked_rows import head_of

__all__ = ["FoundHead", "HeadLayout", "StoredArray", "find_head", "is_wide"]

Numbers: TypeAlias = npt.NDArray[Any]

_KINDS = {ir.DataType.UINT8: "uint8", ir.DataType.FLOAT16: "float16", ir.DataType.FLOAT: "float32"}
_VALUES, _SCALES, _ZERO_POINTS, _ORDER, _BIAS = 1, 2, 3, 4, 5  # inputs of MatMulNBits


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array of a weights file; `kind` is uint8, float16 or float32."""

    kind: str
    offset: int
    shape: tuple[int, int]

    def open(self, weights: Path) -> Numbers:
        """Map it, read-only. Raises ExportError where the file is too short or cannot be read."""
        try:
            return np.asarray(np.memmap(weights, self.kind, mode="r", offset=self.offset, shape=self.shape))
        except (OSError, OverflowError, ValueError) as error:
            raise ExportError(f"{weights} does not hold the head ({error}): export or import the pack again") from None


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """A head of `rows` ids and as many `columns` as the hidden state has.

    Blocks: `values` are uint8 [rows, columns · bits / 8]; `scales` are [rows, blocks], and `zero_points` uint8
    [rows, bytes] or, for the middle of the range, none. Floats: `values` are [rows, columns], or [columns, rows] if
    `transposed`.
    """

    rows: int
    columns: int
    bits: int
    block_size: int
    """0: floats."""
    values: StoredArray
    scales: StoredArray | None = None
    zero_points: StoredArray | None = None
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class FoundHead:
    """The head of a graph whose rows are picked."""

    node: ir.Node
    tail: tuple[ir.Node, ...]
    """What stands between its product and the logits, in order: a scaling, a cap, a cast."""
    layout: HeadLayout

    @property
    def hidden(self) -> ir.Value:
        """What it reads: the last hidden states of the picked rows."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def bias(self) -> ir.Value | None:
        """What it adds to its product."""
        place = {"MatMulNBits": _BIAS, "Gemm": 2}.get(self.node.op_type, len(self.node.inputs))
        return _input(self.node, place)


def find_head(model: ir.Model, *, name: str, weights: PurePath) -> FoundHead:
    """Return the head of a graph whose rows lie in the file `weights`; `name` is the graph's in errors.

    Raises ExportError for a head of another form.
    """
    if not any(value.name == "rows" for value in model.graph.inputs):
        raise ExportError(
            f"{name} computes the logits of every row: its head cannot be trimmed; export the model again"
        )
    node = head_of(model)
    hidden = node.inputs[0]
    if hidden is None or hidden.dtype not in (None, ir.DataType.FLOAT):
        raise ExportError(f"{name} has a head that reads no float32 values: unsupported")
    return FoundHead(node, _tail(model, node, name), _Layouts(name, weights.name).of(node))


def is_wide(value: ir.Value, rows: int) -> bool:
    """Return whether a constant holds a number for each id."""
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
    """The one file that is read, as graphs name it: the engine looks for that name wherever the file lies."""

    def of(self, node: ir.Node) -> HeadLayout:
        if node.op_type == "MatMulNBits":
            return self._blocks(node)
        attributes = node.attributes
        plain = not attributes.get_int("transA", 0) and all(
            attributes.get_float(part, 1.0) == 1.0 for part in ("alpha", "beta")
        )
        if not plain:
            raise self._unsupported("scales or transposes what it reads")
        return self._floats(node, transposed=not attributes.get_int("transB", 0))

    def _blocks(self, node: ir.Node) -> HeadLayout:
        attributes = node.attributes
        rows, columns = attributes.get_int("N", 0), attributes.get_int("K", 0)
        bits, block = attributes.get_int("bits", 4), attributes.get_int("block_size", 0)
        if _input(node, _ORDER) is not None:
            raise self._unsupported("has its columns in another order")
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
            raise self._unsupported("has no weights of a known size")
        first, second = (int(str(size)) for size in shape)
        rows, columns = (second, first) if transposed else (first, second)
        values = self._stored(value, (first, second), kinds=("float16", "float32"))
        bits = 16 if values.kind == "float16" else 32
        return HeadLayout(rows, columns, bits, 0, values, transposed=transposed)

    def _stored(self, value: ir.Value | None, shape: tuple[int, int], *, kinds: tuple[str, ...]) -> StoredArray:
        """Return where an initializer lies in the weights file, in a shape of two dimensions."""
        tensor = None if value is None else value.const_value
        if not isinstance(tensor, ir.ExternalTensor) or PurePath(tensor.location) != PurePath(self.weights):
            raise self._unsupported("does not lie in the model's weights file")
        kind = _KINDS.get(tensor.dtype, "")
        if kind not in kinds:
            raise self._unsupported(f"is stored as {tensor.dtype}")
        if tensor.size != shape[0] * shape[1]:
            raise self._unsupported(f"has {tensor.size} stored numbers where {shape[0] * shape[1]} belong")
        return StoredArray(kind, tensor.offset or 0, shape)

    def _unsupported(self, what: str) -> ExportError:
        return ExportError(f"the head of {self.name} {what}: it cannot be trimmed")


def _tail(model: ir.Model, head: ir.Node, name: str) -> tuple[ir.Node, ...]:
    """Return the nodes from the head's product to the logits. Each may read constants beside it, and nothing else."""
    value = next(value for value in model.graph.outputs if value.name == "logits")
    found: list[ir.Node] = []
    while (node := value.producer()) is not head:
        if node is None or node.inputs[0] is None or not all(map(_is_constant, node.inputs[1:])):
            raise ExportError(f"{name} changes its logits by more than constants: its head cannot be trimmed")
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
