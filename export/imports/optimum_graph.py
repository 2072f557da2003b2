"""A graph that optimum exported, which joins past and present itself: checked, its head cut to the rows asked for."""

from __future__ import annotations

import onnx_ir as ir

from edgedecode.errors import ExportError

from ..graph.passes.picked_rows import picked_head_rows
from .graph_sizes import GraphSizes, read_sizes
from .onnx_source import OnnxSource

__all__ = ["read_optimum_sizes", "rewrite_optimum_graph"]

_NEEDED, _OPTIONAL = ("input_ids", "attention_mask"), ("position_ids",)
_BY_PASS = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")
"""Operators that round all rows of a pass by one scale: then a row depends on which others are with it."""


def read_optimum_sizes(source: OnnxSource) -> GraphSizes:
    """Read the sizes of an optimum graph. Raises ExportError for one with other inputs, types or roundings."""
    model = source.model
    names = {str(value.name) for value in model.graph.inputs}
    plain = {name for name in names if not name.startswith("past_key_values.")}
    if missing := [name for name in _NEEDED if name not in names]:
        raise ExportError(f"{source.graph} has no input {missing[0]}: export it with --task text-generation-with-past")
    if plain == names:
        raise ExportError(f"{source.graph} has no past_key_values: export it with --task text-generation-with-past")
    if foreign := sorted(plain - {*_NEEDED, *_OPTIONAL}):
        raise ExportError(f"{source.graph} needs the input {foreign[0]}, which nothing here can give: unsupported")
    if found := next((node.op_type for node in model.graph if node.op_type in _BY_PASS), None):
        raise ExportError(f"{source.graph} uses {found}, which rounds the rows of a pass together: export it in float")
    for value in (*model.graph.inputs, *model.graph.outputs):
        cached = str(value.name).startswith(("past_key_values.", "present."))
        if (cached or value.name == "logits") and value.dtype != ir.DataType.FLOAT:
            raise ExportError(
                f"{source.graph} has {value.name} in {str(value.dtype).lower()}: export it with --dtype fp32"
            )
    sizes = read_sizes(model, name=source.name, head_size=0)
    if sizes.head_size < 1:
        raise ExportError(f"{source.graph} does not tell the size of its attention heads: unsupported")
    return sizes


def rewrite_optimum_graph(model: ir.Model) -> tuple[str, ...]:
    """Drop outputs that nobody reads and pick rows before the head; return the graph's capabilities."""
    for value in list(model.graph.outputs):
        if value.name != "logits" and not str(value.name).startswith("present."):
            model.graph.outputs.remove(value)
    return ("concat", "rows") if picked_head_rows(model) else ("concat",)
