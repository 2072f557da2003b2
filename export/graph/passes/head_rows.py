"""Computes the head of a graph of plain nodes only for the rows asked for. Needs no shapes but that of the logits."""

from __future__ import annotations

import onnx_ir as ir

from .rows import head_of
from .surgery import add_input, insert_before

__all__ = ["picked_head_rows"]

_ROW_BY_ROW = ("Cast", "Mul", "Div", "Add", "Tanh")


def picked_head_rows(model: ir.Model) -> bool:
    """Add input `rows`, int64 [R], make the logits [R, V], and return True; a head of another form stays as it is.

    Between the head and the logits there may be what works on each value alone: scaling, capping, a cast.
    """
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    head = head_of(model)
    tail = _tail(logits, head)
    hidden = head.inputs[0]
    if tail is None or hidden is None or logits.shape is None:
        return False
    rows = add_input(model, "rows", ir.DataType.INT64, ["R"])
    picked = insert_before(head, ir.node("Gather", [hidden, rows], {"axis": 1}, name="/rows/Gather"))
    axes = insert_before(head, ir.node("Constant", [], {"value": ir.tensor([0])}, name="/rows/axes"))
    flat = insert_before(head, ir.node("Squeeze", [picked, axes], name="/rows/Squeeze"))
    picked.name, axes.name, flat.name = "/rows/picked", "/rows/axes", "/rows/hidden"
    head.replace_input_with(0, flat)
    width = logits.shape[-1]
    for value in tail:
        value.shape = ir.Shape(["R", width])
    return True


def _tail(logits: ir.Value, head: ir.Node) -> list[ir.Value] | None:
    """Return the values from the logits back to the head's output; None where other operations lie between."""
    values = [logits]
    while (node := values[-1].producer()) is not head:
        if node is None or node.op_type not in _ROW_BY_ROW or node.inputs[0] is None:
            return None
        values.append(node.inputs[0])
    return values
