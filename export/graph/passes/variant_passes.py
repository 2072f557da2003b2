"""Passes that turn a base graph into a variant: low-rank deltas, 8-bit KV cache."""

import re
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import STACKS

from .surgery import add_input, attention_nodes, set_optional_input

_PRODUCT = re.compile(r"/model/layers\.(\d+)/(?:attn|mlp)/(\w+_proj)/MatMul")
_PAST, _PRESENT, _SCALES = (3, 4), (1, 2), (12, 13)
_KIND = "PER_CHANNEL"


def low_rank_deltas(model: ir.Model, modules: Collection[str]) -> None:
    """Add inputs `lora.L.M.a` [inputs, r] and `lora.L.M.b` [r, outputs] for every product M of a layer L.

    Their defaults have rank 0, which leaves the base unchanged. Each product gets one pair. Where query, key and value
    are one product, so is their delta: the first matrices are concatenated and the second ones block-diagonal, which is
    exact and costs two small products instead of six.

    A product gets inputs if it is, contains, or is part of one of `modules`. Raises ExportError for a module without a
    product.
    """
    served: set[str] = set()
    for node in list(model.graph):
        match = _PRODUCT.fullmatch(str(node.name))
        if match is None or node.op_type not in ("MatMul", "MatMulNBits"):
            continue
        product = match.group(2)
        if asked := set(modules) & _names(product):
            served |= asked
            _add_delta(model, node, f"lora.{match.group(1)}.{product}")
    if missing := [module for module in modules if module not in served]:
        raise ExportError(f"the graph has no product for {', '.join(missing)}: leave lora out of --graphs")


def _names(product: str) -> set[str]:
    """Return the projections that a product is, contains or is part of."""
    return {product, *STACKS.get(product, ()), *(stack for stack, parts in STACKS.items() if product in parts)}


def _add_delta(model: ir.Model, product: ir.Node, name: str) -> None:
    """Add the delta after the product's bias, if any: the engine fuses product and bias into one kernel."""
    rows, target = product.inputs[0], _biased(product.outputs[0])
    assert rows is not None
    assert target.shape is not None
    rank = f"{name}.r"  # unique, because the engine shares buffers between dimensions of one name, and ranks differ
    first = _matrix(model, f"{name}.a", (_width(rows), rank))
    second = _matrix(model, f"{name}.b", (rank, _width(target)))
    behind = target.producer()
    assert behind is not None
    narrow = ir.node("MatMul", [rows, first], name=f"{name}/Narrow")
    wide = ir.node("MatMul", [narrow.outputs[0], second], name=f"{name}/Wide")
    total = ir.node("Add", [target, wide.outputs[0]], name=f"{name}/Add")
    ir.convenience.replace_all_uses_with(target, total.outputs[0])
    total.replace_input_with(0, target)
    model.graph.insert_after(behind, [narrow, wide, total])
    for node in (narrow, wide, total):
        node.outputs[0].name, node.outputs[0].type = f"{node.name}/output_0", target.type
    narrow.outputs[0].shape = ir.Shape([*target.shape[:-1], rank])
    wide.outputs[0].shape = total.outputs[0].shape = target.shape


def _width(value: ir.Value) -> int:
    width = None if value.shape is None else value.shape[-1]
    assert isinstance(width, int)
    return width


def _biased(value: ir.Value) -> ir.Value:
    uses = list(value.uses())
    if (
        len(uses) == 1
        and uses[0].node.op_type == "Add"
        and any(other is not None and other.is_initializer() for other in uses[0].node.inputs)
    ):
        return uses[0].node.outputs[0]
    return value


def _matrix(model: ir.Model, name: str, shape: tuple[int | str, int | str]) -> ir.Value:
    """Add a float32 input with an empty default."""
    value = add_input(model, name, ir.DataType.FLOAT, shape)
    empty = np.empty([0 if isinstance(size, str) else size for size in shape], np.float32)
    value.const_value = ir.tensor(empty, name=name)
    model.graph.register_initializer(value)
    return value


def int8_cache(model: ir.Model, scales: FloatArray) -> None:
    """Make all past and present tensors int8 and set each layer's scales, [2 · layers, KV heads, head size].

    `declared_shapes` must have run.
    """
    nodes = attention_nodes(model)
    if 2 * len(nodes) != len(scales):
        raise ExportError(f"{len(scales) // 2} layers were calibrated, the graph has {len(nodes)} attention nodes")
    for node, *of_layer in zip(nodes, scales[0::2], scales[1::2], strict=True):
        for index, part in zip(_SCALES, of_layer, strict=True):
            set_optional_input(node, index, _stored(model, f"{node.name}/scale.{index}", part))
        node.attributes["k_quant_type"] = ir.AttrString("k_quant_type", _KIND)
        node.attributes["v_quant_type"] = ir.AttrString("v_quant_type", _KIND)
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
        for value in (*(node.inputs[index] for index in _PAST), *(node.outputs[index] for index in _PRESENT)):
            assert value is not None
            value.type = ir.TensorType(ir.DataType.INT8)


def _stored(model: ir.Model, name: str, scale: FloatArray) -> ir.Value:
    """Add the scales to the graph itself, because the weights file has been written before."""
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([scale.size]))
    value.const_value = ir.tensor(scale.reshape(-1), name=name)
    model.graph.register_initializer(value)
    return value
