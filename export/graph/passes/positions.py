"""Makes rotary positions a graph input, so that rows of a tree may share one."""

from __future__ import annotations

import onnx_ir as ir

from .surgery import add_input, attention_nodes, set_optional_input

__all__ = ["explicit_positions"]

_POSITIONS = 9


def explicit_positions(model: ir.Model) -> None:
    """Add input `position_ids`, int64 [1, S], and wire it to every attention node that rotates."""
    positions = add_input(model, "position_ids", ir.DataType.INT64, [1, "S"])
    for node in attention_nodes(model):
        if node.attributes.get_int("do_rotary", 0):
            set_optional_input(node, _POSITIONS, positions)
