"""Replaces the lookup in a quantized embedding, which NPUs lack, by lookups of packed bytes and of scales."""

import numpy as np
import onnx_ir as ir

from edgedecode.errors import ExportError

from .rewriter import Rewriter

_LOOKUP = "GatherBlockQuantized"


def plain_lookup(model: ir.Model, *, width: int) -> None:
    """Rewrite a static graph's embedding of 4 or 8 bits; others stay. Raises ExportError for zero points.

    Bytes are declared as quantized numbers of scale 1, as QNN looks up no others; the rest is float32 arithmetic, which
    is exact for them.
    """
    for node in [node for node in model.graph if node.op_type == _LOOKUP]:
        _plain(node, width)


def _plain(node: ir.Node, width: int) -> None:
    table, ids, scales = node.inputs[:3]
    bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
    if len(node.inputs) > 3 or bits not in (4, 8) or table is None:
        raise ExportError(f"the embedding has {bits} bits, or zero points: NPU graphs need symmetric 4 or 8 bits")
    new = Rewriter(node)
    one, zero = new.constant(np.asarray(1, np.float32)), new.constant(np.asarray(128 if bits == 8 else 0, np.uint8))
    rows = new.add("Gather", new.add("DequantizeLinear", table, one, zero), ids, axis=0)
    packed = new.add("QuantizeLinear", rows, one, zero)
    packed.type = table.type
    numbers = new.add("DequantizeLinear", packed, one, zero)
    if bits == 4:  # two numbers a byte, the low half first
        high = new.add("Floor", new.scaled(numbers, 1 / 16))
        low = new.add("Sub", numbers, new.scaled(high, 16))
        pair = [new.reshape(part, 1, width, -1, 1) for part in (low, high)]
        numbers = new.add("Sub", new.add("Concat", *pair, axis=3), new.constant(np.asarray([8], np.float32)))
    by_block = new.reshape(new.add("Gather", scales, ids, axis=0), 1, width, -1, 1)
    values = new.add("Mul", new.reshape(numbers, 1, width, -1, block), by_block)
    new.finish(new.reshape(values, 1, width, -1))
