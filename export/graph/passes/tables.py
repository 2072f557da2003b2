"""Lets an embedding share the bytes of a tied head without a copy: a second view instead of a Reshape at loading."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

__all__ = ["viewed_tables"]


def viewed_tables(model: ir.Model) -> None:
    """Replace each Reshape of an external initializer by an initializer of the new shape over the same bytes.

    The engine would fold the Reshape into a copy of the whole table, which nobody planned.
    """
    for node in [node for node in model.graph if node.op_type == "Reshape"]:
        source, output = node.inputs[0], node.outputs[0]
        tensor = source.const_value if source is not None and source.is_initializer() else None
        if not isinstance(tensor, ir.ExternalTensor) or output.shape is None or output.is_graph_output():
            continue
        if not all(isinstance(size, int) for size in output.shape):
            continue
        view = ir.Value(name=f"{tensor.name}/view", type=ir.TensorType(tensor.dtype), shape=output.shape)
        view.const_value = ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=output.shape,
            name=str(view.name),
            base_dir=tensor.base_dir,
        )
        model.graph.register_initializer(view)
        ir.convenience.replace_all_uses_with(output, view)
        model.graph.remove(node, safe=True)
    common.RemoveUnusedNodesPass()(model)
