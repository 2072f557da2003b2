"""Says in the graph where every weight lies: one external file beside it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from edgedecode.errors import ExportError

from ..weights import Extent

__all__ = ["placed_weights"]


def placed_weights(model: ir.Model, extents: Mapping[str, Extent], *, file: str) -> None:
    """Point each initializer to its extent of `file`. Raises ExportError for one that has none."""
    for name, value in model.graph.initializers.items():
        extent = extents.get(name)
        if extent is None or value.dtype is None:
            raise ExportError(f"the weight {name} of the graph has no place in {file}: this is a mistake in edgedecode")
        value.const_value = ir.ExternalTensor(
            file,
            extent.offset,
            extent.spec.nbytes,
            value.dtype,
            shape=ir.Shape(extent.spec.shape),
            name=name,
        )
