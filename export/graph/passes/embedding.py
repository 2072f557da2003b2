"""Stores the token embedding as its scheme says and looks rows up in that form; a tied head shares the bytes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from edgedecode.errors import ExportError

from ..quantize import Scheme
from ..recipe import EMBEDDING
from ..sources import Recorded, matrix_of
from ..weights import Weights
from .surgery import add_weight, drop_weight, insert_before

__all__ = ["stored_embedding"]


def stored_embedding(model: ir.Model, recorded: Mapping[str, Recorded], *, weights: Weights, scheme: Scheme) -> None:
    """Replace the Gather on `input_ids`. The table is kept as `embedding`; a tied head finds it there."""
    node = next((node for node in model.graph if node.op_type == "Gather" and _on_ids(node)), None)
    if node is None or node.inputs[0] is None or node.inputs[0].name not in recorded:
        raise ExportError("the graph has no embedding table that `input_ids` picks from: unsupported")
    table = node.inputs[0]
    source = matrix_of(recorded[str(table.name)], transposed=False)
    shape = (source.rows, source.columns)
    if scheme.quantized:
        recipe = weights.blocks(EMBEDDING, source, scheme=scheme)
        flat = (source.rows, recipe.packed.nbytes // source.rows)
        packed = weights.alias(f"{recipe.name}.packed.rows", recipe.packed, shape=flat)
        inputs = [add_weight(model, packed), node.inputs[1], add_weight(model, recipe.scales)]
        attributes = {"bits": scheme.bits, "block_size": scheme.block_size, "gather_axis": 0, "quantize_axis": 1}
        new = ir.node("GatherBlockQuantized", inputs, attributes, domain="com.microsoft", name=node.name)
        result = insert_before(node, new)
    else:
        spec = weights.plain(EMBEDDING, source, shape=shape, bits=scheme.bits)
        new = ir.node("Gather", [add_weight(model, spec), node.inputs[1]], name=node.name)
        result = insert_before(node, new)
        if scheme.bits == 16:
            result.name = f"{node.outputs[0].name}/half"
            result.type, result.shape = ir.TensorType(ir.DataType.FLOAT16), node.outputs[0].shape
            result = insert_before(node, ir.node("Cast", [result], {"to": ir.DataType.FLOAT}, name=f"{node.name}/Cast"))
    _take_over(model, node, result)
    drop_weight(model, table)


def _on_ids(node: ir.Node) -> bool:
    return len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].name == "input_ids"


def _take_over(model: ir.Model, node: ir.Node, result: ir.Value) -> None:
    old = node.outputs[0]
    result.type, result.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, result)
    model.graph.remove(node, safe=True)
    result.name = old.name
