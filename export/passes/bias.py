"""Makes the attention bias a graph input: minus infinity hides a slot, which is how a tree is told from a chain."""

from __future__ import annotations

import onnx_ir as ir

from .surgery import add_input, attention_nodes, set_optional_input

__all__ = ["tree_bias"]

_BIAS = 10


def tree_bias(model: ir.Model) -> None:
    """Add input `attention_bias`, float32 [1, 1, S, T], and wire it to every attention node."""
    bias = add_input(model, "attention_bias", ir.DataType.FLOAT, [1, 1, "S", "T"])
    for node in attention_nodes(model):
        set_optional_input(node, _BIAS, bias)
