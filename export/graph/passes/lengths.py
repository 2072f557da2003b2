"""Gives the attention nodes their lengths as graph inputs, in place of a subgraph that sums an attention mask."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

from .surgery import add_input, attention_nodes, input_named

__all__ = ["direct_lengths"]

_SEQLENS, _TOTAL = 5, 6


def direct_lengths(model: ir.Model) -> None:
    """Add inputs `seqlens_k` and `total_length`, both int32 [1], and remove `attention_mask` with its subgraph."""
    seqlens = add_input(model, "seqlens_k", ir.DataType.INT32, [1])
    total = add_input(model, "total_length", ir.DataType.INT32, [1])
    for node in attention_nodes(model):
        node.replace_input_with(_SEQLENS, seqlens)
        node.replace_input_with(_TOTAL, total)
    common.RemoveUnusedNodesPass()(model)
    mask = input_named(model, "attention_mask")
    if mask is not None and not mask.uses():
        model.graph.inputs.remove(mask)
