"""Replaces a graph's weights with references to the weights file: embedding, projections and constants."""

from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir
import onnx_ir.passes.common as common

from edgedecode.errors import ExportError

from ..quantize import Scheme
from ..recipe import EMBEDDING, HEAD, projection_name
from ..weight_bytes import BlockWeight, Matrix, Recorded, matrix_of
from ..weights_file import Extent, Weights
from .surgery import add_weight, drop_weight, insert_before

_LEVEL = "accuracy_level"
_FLOAT32_LEVEL, _FLOAT16_LEVEL, _INT8_LEVEL = 1, 2, 4
"""How MatMulNBits may round activations. Level 4 allows 8 bits: the fast kernels, for weights of any width. Level 2
requests float16 accuracy: our kernels then use 16 bits, ONNX Runtime's CPU kernels float32. Level 1: float32."""


def stored_embedding(model: ir.Model, recorded: Mapping[str, Recorded], *, weights: Weights, scheme: Scheme) -> None:
    """Replace the Gather on `input_ids`. The table is stored as `embedding`, which a tied head shares."""
    node = next((node for node in model.graph if node.op_type == "Gather" and _indexed_by_ids(node)), None)
    if node is None or node.inputs[0] is None or node.inputs[0].name not in recorded:
        raise ExportError("the graph has no embedding table indexed by `input_ids`: unsupported")
    table = node.inputs[0]
    source = matrix_of(recorded[str(table.name)], transposed=False)
    shape = (source.rows, source.columns)
    if scheme.quantized:
        recipe = weights.blocks(EMBEDDING, source, scheme=scheme)
        flat = (source.rows, recipe.packed.nbytes // source.rows)
        packed = weights.alias(f"{recipe.name}.packed.rows", recipe.packed, shape=flat)
        inputs = [add_weight(model, packed), node.inputs[1], add_weight(model, recipe.scales)]
        attributes = {"bits": scheme.bits, "block_size": scheme.block_size, "gather_axis": 0, "quantize_axis": 1}
        new = ir.node("GatherBlockQuantized", inputs, attributes, domain="com.microsoft", name=node.name)
        result = insert_before(node, new)
    else:
        spec = weights.plain(EMBEDDING, source, shape=shape, bits=scheme.bits)
        new = ir.node("Gather", [add_weight(model, spec), node.inputs[1]], name=node.name)
        result = insert_before(node, new)
        if scheme.bits == 16:
            result.name = f"{node.outputs[0].name}/half"
            result.type, result.shape = ir.TensorType(ir.DataType.FLOAT16), node.outputs[0].shape
            result = insert_before(node, ir.node("Cast", [result], {"to": ir.DataType.FLOAT}, name=f"{node.name}/Cast"))
    _replace(model, node, result)
    drop_weight(model, table)


def _indexed_by_ids(node: ir.Node) -> bool:
    return len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].name == "input_ids"


def stored_projections(
    model: ir.Model, recorded: Mapping[str, Recorded], *, weights: Weights, scheme_of: Callable[[str], Scheme]
) -> None:
    """Replace every MatMul on a recorded weight; `scheme_of` gets the weight's name, `head` for the head."""
    for node in [node for node in model.graph if node.op_type == "MatMul"]:
        weight = node.inputs[1]
        if weight is None or weight.name not in recorded:
            continue
        head = node.outputs[0].is_graph_output() or "lm_head" in str(node.name)
        name = HEAD if head else str(weight.name).removesuffix(".MatMul.weight").removesuffix(".weight")
        source = matrix_of(recorded[str(weight.name)], transposed=True)
        scheme = scheme_of(name)
        if scheme.quantized:
            new = _blocks(model, node, weights.blocks(name, source, scheme=scheme))
        else:
            new = _floats(model, node, name, weights=weights, source=source, bits=scheme.bits)
        _replace(model, node, insert_before(node, new))
        drop_weight(model, weight)


def _blocks(model: ir.Model, node: ir.Node, stored: BlockWeight) -> ir.Node:
    attributes = {
        "K": stored.source.columns,
        "N": stored.source.rows,
        "bits": stored.scheme.bits,
        "block_size": stored.scheme.block_size,
        _LEVEL: _INT8_LEVEL,
    }
    inputs = [node.inputs[0], add_weight(model, stored.packed), add_weight(model, stored.scales)]
    return ir.node("MatMulNBits", inputs, attributes, domain="com.microsoft", name=node.name)


def _floats(model: ir.Model, node: ir.Node, name: str, *, weights: Weights, source: Matrix, bits: int) -> ir.Node:
    """Make a MatMul, or for the head a Gemm, whose weight has the embedding's orientation and can be shared."""
    if name == HEAD:
        spec = weights.plain(name, source, shape=(source.rows, source.columns), bits=bits)
    else:
        spec = weights.transposed(name, source, bits=bits)
    weight = add_weight(model, spec)
    if bits == 16:  # float16 in the file, float32 in the kernels: the engine folds the cast at load time
        cast = ir.node("Cast", [weight], {"to": ir.DataType.FLOAT}, name=f"{node.name}/Cast")
        shape, weight = weight.shape, insert_before(node, cast)
        weight.name, weight.type, weight.shape = f"{spec.name}/float", ir.TensorType(ir.DataType.FLOAT), shape
    if name == HEAD:
        return ir.node("Gemm", [node.inputs[0], weight], {"transB": 1}, name=node.name)
    return ir.node("MatMul", [node.inputs[0], weight], name=node.name)


def _replace(model: ir.Model, old: ir.Node, result: ir.Value) -> None:
    """Replace the output of `old` with `result`, keeping its name."""
    output = old.outputs[0]
    result.type, result.shape = output.type, output.shape
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    model.graph.remove(old, safe=True)
    result.name = output.name


def stored_constants(model: ir.Model, recorded: Mapping[str, Recorded], *, weights: Weights) -> None:
    """Store every recorded initializer that is still used in the weights file, as float32."""
    for name, value in list(model.graph.initializers.items()):
        if not value.uses():
            drop_weight(model, value)
        elif name in recorded:
            source = matrix_of(recorded[name], transposed=False)
            spec = weights.plain(name, source, shape=tuple(int(size) for size in recorded[name].shape))
            del model.graph.initializers[name]
            ir.convenience.replace_all_uses_with(value, add_weight(model, spec))


def placed_weights(model: ir.Model, extents: Mapping[str, Extent], *, file: str) -> None:
    """Point each initializer to its extent in `file`. Raises ExportError if one has none."""
    for name, value in model.graph.initializers.items():
        extent = extents.get(name)
        if extent is None or value.dtype is None:
            raise ExportError(f"the graph's weight {name} is not in {file}: this is a bug in edgedecode")
        value.const_value = ir.ExternalTensor(
            file, extent.offset, extent.spec.nbytes, value.dtype, shape=ir.Shape(extent.spec.shape), name=name
        )


def viewed_tables(model: ir.Model) -> None:
    """Replace each Reshape of an external initializer with an initializer of the new shape over the same bytes.

    The engine would fold the Reshape into a copy of the full table, which the memory plan does not include.
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


def exact_products(model: ir.Model) -> None:
    """Request float32 activations in every MatMulNBits: many times slower, but activations are not rounded."""
    for node in _products(model):
        node.attributes[_LEVEL] = ir.AttrInt64(_LEVEL, _FLOAT32_LEVEL)


def set_activations(model: ir.Model, wide: Collection[str]) -> None:
    """Request 16-bit activations in the products `wide` (as in `projection_name`) and 8-bit ones in the others."""
    for node in _products(model):
        level = _FLOAT16_LEVEL if _name(node) in wide else _INT8_LEVEL
        node.attributes[_LEVEL] = ir.AttrInt64(_LEVEL, level)


def product_names(model: ir.Model) -> tuple[str, ...]:
    """Return the names of quantized products in graph order; products with the same input share a name."""
    return tuple(dict.fromkeys(_name(node) for node in _products(model)))


def _products(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "MatMulNBits"]


def _name(node: ir.Node) -> str:
    weight = node.inputs[1]
    if node.outputs[0].is_graph_output() or "lm_head" in str(node.name):
        return HEAD
    assert weight is not None
    return projection_name(str(weight.name).removesuffix(".packed"))
