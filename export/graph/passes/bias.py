"""Makes the attention bias a graph input: a large negative value hides a slot, which tells a tree from a chain.

Layers with a sliding window get a bias of their own. The engine's window attribute counts slots, which is wrong for the
branches of a tree: it is taken off, and whoever fills the bias counts positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .surgery import add_input, attention_nodes, set_optional_input

__all__ = ["tree_bias"]

_BIAS = 10
_SHAPE = (1, 1, "S", "T")
_WINDOW_ATTRIBUTES = ("local_window_size", "sliding_window_cache")


def tree_bias(model: ir.Model, *, windowed: Sequence[bool] = ()) -> None:
    """Add input `attention_bias`, float32 [1, 1, S, T], and wire it to every attention node without a window.

    windowed[i] says that layer i has one: it gets input `window_bias` of the same shape. Each input is there only if a
    layer uses it; () means no windows at all.
    """
    for layer, node in enumerate(attention_nodes(model)):
        name = "window_bias" if windowed and windowed[layer] else "attention_bias"
        set_optional_input(node, _BIAS, add_input(model, name, ir.DataType.FLOAT, _SHAPE))
        for attribute in _WINDOW_ATTRIBUTES:
            node.attributes.pop(attribute, None)
