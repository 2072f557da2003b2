"""How coarse the activations of quantized products may be: the accuracy levels of MatMulNBits.

Level 4 allows 8 bits. Level 2 asks for float16's accuracy: our kernels then use 16 bits, ONNX Runtime's on a processor
float32. Level 1 asks for float32.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ..recipe import HEAD, projection_name

__all__ = ["INT8_LEVEL", "exact_products", "product_names", "set_activations"]

FLOAT32_LEVEL, FLOAT16_LEVEL, INT8_LEVEL = 1, 2, 4
_LEVEL = "accuracy_level"


def exact_products(model: ir.Model) -> None:
    """Ask for float32 activations in every MatMulNBits: many times slower, no rounding of its own."""
    for node in _products(model):
        node.attributes[_LEVEL] = ir.AttrInt64(_LEVEL, FLOAT32_LEVEL)


def set_activations(model: ir.Model, wide: Collection[str]) -> None:
    """Ask for 16-bit activations in the products named so (as in `projection_name`), for 8-bit ones in the others."""
    for node in _products(model):
        level = FLOAT16_LEVEL if _name(node) in wide else INT8_LEVEL
        node.attributes[_LEVEL] = ir.AttrInt64(_LEVEL, level)


def product_names(model: ir.Model) -> tuple[str, ...]:
    """Name the inputs of quantized products in the graph's order; products that read one input share a name."""
    return tuple(dict.fromkeys(_name(node) for node in _products(model)))


def _products(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "MatMulNBits"]


def _name(node: ir.Node) -> str:
    weight = node.inputs[1]
    if node.outputs[0].is_graph_output() or "lm_head" in str(node.name):
        return HEAD
    assert weight is not None
    return projection_name(str(weight.name).removesuffix(".packed"))
