"""Small operations on onnx_ir graphs, shared by the passes."""

from collections.abc import Sequence

import onnx_ir as ir

from edgedecode.errors import ExportError

from ..weight_bytes import TensorSpec


def attention_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the GroupQueryAttention nodes in order. Raises ExportError if the graph has none."""
    nodes = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    if not nodes:
        raise ExportError("the graph has no GroupQueryAttention node: the builder used another kind of attention")
    return nodes


def input_named(model: ir.Model, name: str) -> ir.Value | None:
    return next((value for value in model.graph.inputs if value.name == name), None)


def add_input(model: ir.Model, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
    """Return the graph's input `name`, adding it if needed."""
    value = input_named(model, name)
    if value is None:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        model.graph.inputs.append(value)
    return value


def set_optional_input(node: ir.Node, index: int, value: ir.Value) -> None:
    """Set an optional input, extending the node's inputs with absent ones if needed."""
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def insert_before(node: ir.Node, new: ir.Node) -> ir.Value:
    """Insert `new` before `node` and return its first output."""
    assert node.graph is not None
    node.graph.insert_before(node, new)
    return new.outputs[0]


def add_weight(model: ir.Model, spec: TensorSpec) -> ir.Value:
    """Return the initializer for `spec`, adding it if needed; `placed_weights` sets its data later."""
    known = model.graph.initializers.get(spec.name)
    if known is not None and known.shape == ir.Shape(spec.shape):
        return known
    dtype = ir.DataType[{"float32": "FLOAT", "float16": "FLOAT16", "uint8": "UINT8"}[spec.dtype]]
    value = ir.Value(name=spec.name, type=ir.TensorType(dtype), shape=ir.Shape(spec.shape))
    value.const_value = ir.LazyTensor(_no_data, dtype=dtype, shape=ir.Shape(spec.shape), name=spec.name)
    model.graph.register_initializer(value)
    return value


def drop_weight(model: ir.Model, value: ir.Value) -> None:
    """Remove an initializer if it is unused."""
    name = str(value.name)
    if not value.uses() and name in model.graph.initializers:
        del model.graph.initializers[name]


def _no_data() -> ir.TensorProtocol:
    raise AssertionError("weights are read from their file, never through the graph")
