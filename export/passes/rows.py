"""Computes logits only for the rows asked for, and after the last attention nothing else for the others.

Behind the last attention every operation works on each row alone, so the rows are picked there: the last MLP, the final
norm and the head see the picked rows only.
"""

from __future__ import annotations

import onnx_ir as ir

from edgedecode.errors import ExportError

from .surgery import add_input, attention_nodes, insert_before

__all__ = ["picked_rows"]


def picked_rows(model: ir.Model) -> None:
    """Add input `rows`, int64 [R], and make the logits [R, V]. R may be 0. Raises ExportError for a graph it cannot cut."""
    rows = add_input(model, "rows", ir.DataType.INT64, ["R"])
    last = attention_nodes(model)[-1]
    behind = _behind(last)
    picked: dict[ir.Value, ir.Value] = {}
    for node in behind:
        for index, value in enumerate(node.inputs):
            if value is None or value.is_initializer() or _constant(value) or value.producer() in behind:
                continue
            if value not in picked:
                picked[value] = _pick(node, value, rows)
            node.replace_input_with(index, picked[value])
    for node in behind:
        for output in node.outputs:
            if output.shape is not None and len(output.shape) == 3:
                output.shape = ir.Shape([1, "R", output.shape[2]])
    _flatten_logits(model)


def _behind(last: ir.Node) -> list[ir.Node]:
    """Return the nodes that depend on the last attention's output, in order."""
    assert last.graph is not None
    reached, found = {last.outputs[0]}, []
    for node in last.graph:
        if any(value in reached for value in node.inputs):
            reached.update(node.outputs)
            found.append(node)
    return found


def _constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"


def _pick(node: ir.Node, value: ir.Value, rows: ir.Value) -> ir.Value:
    if value.producer() is None or value.shape is None or len(value.shape) != 3:
        raise ExportError(f"the graph uses {value.name} behind the last attention, where only rows may pass: unsupported")
    gather = ir.node("Gather", [value, rows], {"axis": 1}, name=f"{value.name}/picked")
    output = insert_before(node, gather)
    output.name, output.type = f"{value.name}/picked", value.type
    output.shape = ir.Shape([1, "R", value.shape[2]])
    return output


def _flatten_logits(model: ir.Model) -> None:
    """Drop the batch dimension in front of the head, where the rows are still narrow."""
    logits = next((value for value in model.graph.outputs if value.name == "logits"), None)
    head = logits
    while head is not None and (node := head.producer()) is not None and node.op_type != "MatMul":
        node.outputs[0].shape = _flat(node.outputs[0])
        head = node.inputs[0]
    node = head.producer() if head is not None else None
    if node is None or node.inputs[0] is None:
        raise ExportError("the graph's logits do not come from a matrix product: unsupported head")
    hidden = node.inputs[0]
    axes = ir.node("Constant", [], {"value": ir.tensor([0], dtype=ir.DataType.INT64)}, name="/rows/axes")
    insert_before(node, axes).name = "/rows/axes"
    squeeze = ir.node("Squeeze", [hidden, axes.outputs[0]], name="/rows/Squeeze")
    flat = insert_before(node, squeeze)
    flat.name, flat.type, flat.shape = "/rows/hidden", hidden.type, _flat(hidden)
    node.replace_input_with(0, flat)
    node.outputs[0].shape = _flat(node.outputs[0])


def _flat(value: ir.Value) -> ir.Shape:
    assert value.shape is not None
    return ir.Shape(["R", value.shape[-1]])
