"""Gives out what the head reads: the last hidden state of the picked rows, behind the final norm."""

from __future__ import annotations

import onnx_ir as ir

from .rows import head_of

__all__ = ["hidden_output"]


def hidden_output(model: ir.Model) -> None:
    """Add output `hidden`, float32 [R, hidden size], behind the logits. `picked_rows` must have run."""
    hidden = head_of(model).inputs[0]
    assert hidden is not None
    assert not hidden.is_graph_output()
    hidden.name = "hidden"
    logits = next(index for index, value in enumerate(model.graph.outputs) if value.name == "logits")
    model.graph.outputs.insert(logits + 1, hidden)
