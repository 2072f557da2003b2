"""Declares the shapes of the graph's inputs and outputs: batch 1, short names for what varies, sizes for the rest."""

from __future__ import annotations

from collections.abc import MutableSequence

import onnx_ir as ir

from .surgery import attention_nodes

__all__ = ["declared_shapes"]

_RENAMED = {"sequence_length": "S", "S": "S", "R": "R"}
"""Names of the second dimension; any other is left open, such as rows times heads before a norm of each head."""
_ORDER = ("input_ids", "position_ids", "seqlens_k", "total_length", "attention_bias", "window_bias", "rows")


def declared_shapes(model: ir.Model, *, head_size: int) -> None:
    """Set shapes and the order of inputs and outputs: plain ones first, then key and value layer by layer."""
    pairs: list[ir.Value] = []
    results: list[ir.Value] = []
    for node in attention_nodes(model):
        pairs += [value for value in node.inputs[3:5] if value is not None]
        results += node.outputs[1:3]
    for values, length in ((pairs, "P"), (results, "N")):
        for value in values:
            assert value.shape is not None
            value.shape = ir.Shape([1, value.shape[1], length, head_size])
    named = {str(value.name): value for value in model.graph.inputs}
    for name in ("input_ids", "position_ids"):
        if name in named:
            named[name].shape = ir.Shape([1, "S"])
    plain = [named[name] for name in _ORDER if name in named]
    others = [value for value in model.graph.inputs if value not in plain and value not in pairs]
    _reorder(model.graph.inputs, [*plain, *others, *pairs])
    _reorder(model.graph.outputs, [*(value for value in model.graph.outputs if value not in results), *results])
    for node in model.graph:
        for output in node.outputs:
            if output.shape is not None and len(output.shape) == 3 and output not in results:
                output.shape = ir.Shape([1, _RENAMED.get(str(output.shape[1])), output.shape[2]])


def _reorder(values: MutableSequence[ir.Value], wanted: list[ir.Value]) -> None:
    assert len(values) == len(wanted)
    values[:] = wanted
