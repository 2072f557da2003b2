"""Restricts a graph's logits to the requested rows.

All operations after the last attention are row-wise, so rows can be selected there: the last MLP then only runs on the
selected rows, which saves much of a two-layer draft's prefill.
"""

import onnx_ir as ir

from edgedecode.errors import ExportError

from .surgery import add_input, attention_nodes, insert_before


def picked_rows(model: ir.Model, *, early: bool) -> None:
    """Add input `rows`, int64 [R], and make the logits [R, V]; R may be 0.

    early: select rows after the last attention instead of before the final norm. The last MLP then runs on R rows, and
    float and 4-bit kernels round one row differently from several; 8-bit kernels do not.
    Raises ExportError for an unsupported graph.
    """
    rows = add_input(model, "rows", ir.DataType.INT64, ["R"])
    dependents = _dependents(attention_nodes(model)[-1].outputs[0]) if early else _from_final_norm(model)
    picked: dict[ir.Value, ir.Value] = {}
    for node in dependents:
        for index, value in enumerate(node.inputs):
            if value is None or value.is_initializer() or _constant(value) or value.producer() in dependents:
                continue
            if value not in picked:
                picked[value] = _pick(node, value, rows)
            node.replace_input_with(index, picked[value])
    for node in dependents:
        for output in node.outputs:
            if output.shape is not None and len(output.shape) == 3:
                output.shape = ir.Shape([1, "R", output.shape[2]])
    _flatten_logits(model)


def _from_final_norm(model: ir.Model) -> list[ir.Node]:
    """Return the final norm, which feeds the head, and the nodes that depend on its output."""
    hidden = head_of(model).inputs[0]
    norm = hidden.producer() if hidden is not None else None
    if hidden is None or norm is None:
        raise ExportError("the graph's head has no preceding node: unsupported")
    return [norm, *_dependents(hidden)]


def _dependents(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that depend on `value`, in graph order."""
    producer = value.producer()
    assert producer is not None
    assert producer.graph is not None
    reached, found = {value}, []
    for node in producer.graph:
        if any(value in reached for value in node.inputs):
            reached.update(node.outputs)
            found.append(node)
    return found


def _constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"


def _pick(node: ir.Node, value: ir.Value, rows: ir.Value) -> ir.Value:
    if value.producer() is None or value.shape is None or len(value.shape) != 3:
        raise ExportError(
            f"the graph uses {value.name}, which is not a row-wise value, after the last attention: unsupported"
        )
    gather = ir.node("Gather", [value, rows], {"axis": 1}, name=f"{value.name}/picked")
    output = insert_before(node, gather)
    output.name, output.type = f"{value.name}/picked", value.type
    output.shape = ir.Shape([1, "R", value.shape[2]])
    return output


def _flatten_logits(model: ir.Model) -> None:
    """Drop the batch dimension before the head, where rows are still narrow."""
    head = head_of(model)
    hidden = head.inputs[0]
    assert hidden is not None
    axes = insert_before(head, ir.node("Constant", [], {"value": ir.tensor([0])}, name="/rows/axes"))
    axes.name, axes.type, axes.shape = "/rows/axes", ir.TensorType(ir.DataType.INT64), ir.Shape([1])
    flat = insert_before(head, ir.node("Squeeze", [hidden, axes], name="/rows/Squeeze"))
    flat.name, flat.type, flat.shape = "/rows/hidden", hidden.type, _flat(hidden)
    head.replace_input_with(0, flat)
    for node in (head, *_dependents(head.outputs[0])):
        node.outputs[0].shape = _flat(node.outputs[0])


def head_of(model: ir.Model) -> ir.Node:
    """Return the matrix product that computes the logits, before any scaling or capping. Raises ExportError."""
    value = next((value for value in model.graph.outputs if value.name == "logits"), None)
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in ("MatMul", "MatMulNBits", "Gemm"):
            return node
        value = node.inputs[0]
    raise ExportError("the graph's logits do not come from a matrix product: unsupported head")


def _flat(value: ir.Value) -> ir.Shape:
    assert value.shape is not None
    return ir.Shape(["R", value.shape[-1]])
