"""Derives how an imported graph's weights are stored from its shapes, without reading them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from edgedecode.errors import ExportError

from ..graph.passes.picked_rows import head_of
from .imported_pack import WeightWidths

_MATRIX_AXES = 2
"""Minimum number of axes of a counted weight; excludes norms and biases."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A stored matrix: its number of weights, their bits, and the block size (0 for floats)."""

    name: str
    weights: int
    bits: int
    block_size: int = 0


def read_widths(model: ir.Model, *, name: str) -> WeightWidths:
    """Read how a graph's weights are stored. Raises an ExportError that begins with `name`."""
    head_table = next(_tables_of(head_of(model)), None)
    tables = {table.name: table for node in model.graph for table in _tables_of(node)}
    if head_table is None:
        raise ExportError(f"{name}: its head's weights are computed by other nodes (QDQ?): build it without use_qdq")
    body = [table for table in tables.values() if table.name != head_table.name]
    widths = Counter[tuple[int, int]]()
    for table in body:
        widths[table.bits, table.block_size] += table.weights
    bits, block_size = widths.most_common(1)[0][0] if widths else (head_table.bits, head_table.block_size)
    return WeightWidths(
        parameters=sum(table.weights for table in tables.values()),
        bits=bits,
        block_size=block_size,
        head_bits=head_table.bits,
        quantization=_mixed_widths(body),
    )


def _tables_of(node: ir.Node) -> Iterator[_Table]:
    """Yield the matrices that a node reads; quantized ones are described by the node's attributes."""
    if node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
        weight = node.inputs[1 if node.op_type == "MatMulNBits" else 0]
        bits, block = (node.attributes.get_int(key, 0) for key in ("bits", "block_size"))
        source = _initializer(weight)
        if source is not None and source.shape is not None:
            count = prod(source.shape.numpy()) * (source.dtype.bitwidth if source.dtype else 8)
            yield _Table(str(source.name), count // (bits or 4), bits or 4, block or 32)
    elif node.op_type in ("MatMul", "Gemm", "Gather"):
        source = _initializer(node.inputs[0 if node.op_type == "Gather" else 1])
        if (
            source is not None
            and source.shape is not None
            and len(source.shape) >= _MATRIX_AXES
            and source.dtype is not None
        ):
            yield _Table(str(source.name), prod(source.shape.numpy()), source.dtype.bitwidth)


def _initializer(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that a value reshapes, transposes or casts; None if there is none."""
    while value is not None and not value.is_initializer():
        producer = value.producer()
        if producer is None or producer.op_type not in ("Reshape", "Transpose", "Cast"):
            return None
        value = producer.inputs[0]
    return value


def _mixed_widths(body: list[_Table]) -> str:
    widths = sorted({table.bits for table in body})
    return f"mixed: {' and '.join(str(width) for width in widths)} bits" if len(widths) > 1 else ""
