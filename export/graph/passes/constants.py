"""Keeps what is left as floats: norms, biases and rotary tables, small tensors that every graph of a model shares."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ..sources import Recorded, matrix_of
from ..weights import Weights
from .surgery import add_weight, drop_weight

__all__ = ["stored_constants"]


def stored_constants(model: ir.Model, recorded: Mapping[str, Recorded], *, weights: Weights) -> None:
    """Give every recorded initializer that is still used a float32 place in the weights file."""
    for name, value in list(model.graph.initializers.items()):
        if not value.uses():
            drop_weight(model, value)
        elif name in recorded:
            source = matrix_of(recorded[name], transposed=False)
            spec = weights.plain(name, source, shape=tuple(int(size) for size in recorded[name].shape))
            del model.graph.initializers[name]
            ir.convenience.replace_all_uses_with(value, add_weight(model, spec))
