"""Turns off the rounding of activations in quantized products, so that everything else can be checked exactly."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["exact_products"]


def exact_products(model: ir.Model) -> None:
    """Set accuracy level 0 on every MatMulNBits: float activations, many times slower, no rounding of its own."""
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 0)
