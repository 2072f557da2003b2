"""Keeps keys and values as 8-bit integers, with a scale a channel that the graph holds. Rounds, so it is not exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from edgedecode.decoding.arrays import FloatArray
from edgedecode.errors import ExportError

from .surgery import attention_nodes, set_optional_input

__all__ = ["CacheScales", "int8_cache"]

_PAST, _PRESENT, _SCALES = (3, 4), (1, 2), (12, 13)
_KIND = "PER_CHANNEL"


@dataclass(frozen=True, slots=True)
class CacheScales:
    """One layer's scales, [KV heads, head size] each: what an integer of the cache stands for. The keys are rotated."""

    key: FloatArray
    value: FloatArray


def int8_cache(model: ir.Model, scales: Sequence[CacheScales]) -> None:
    """Make every past and present int8 and give each attention node its layer's scales. `declared_shapes` has run."""
    nodes = attention_nodes(model)
    if len(nodes) != len(scales):
        raise ExportError(f"{len(scales)} layers were calibrated, the graph has {len(nodes)} attention nodes")
    for node, of_layer in zip(nodes, scales, strict=True):
        for index, part in zip(_SCALES, (of_layer.key, of_layer.value), strict=True):
            set_optional_input(node, index, _stored(model, f"{node.name}/scale.{index}", part))
        node.attributes["k_quant_type"] = ir.AttrString("k_quant_type", _KIND)
        node.attributes["v_quant_type"] = ir.AttrString("v_quant_type", _KIND)
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
        for value in (*(node.inputs[index] for index in _PAST), *(node.outputs[index] for index in _PRESENT)):
            assert value is not None
            value.type = ir.TensorType(ir.DataType.INT8)


def _stored(model: ir.Model, name: str, scale: FloatArray) -> ir.Value:
    """Add the scales to the graph itself: the weights file was written before they were known."""
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([scale.size]))
    value.const_value = ir.tensor(scale.reshape(-1), name=name)
    model.graph.register_initializer(value)
    return value
