"""Adds low-rank deltas to projections: their matrices are graph inputs whose defaults have rank 0, which is the base.

One pair of matrices serves one product. Where query, key and value are one product, so is their delta: the first
matrices lie side by side and the second ones on a diagonal, which is exact and costs two small products, not six.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from edgedecode.errors import ExportError
from edgedecode.pack.manifest import STACKS

from .surgery import add_input

__all__ = ["low_rank_deltas"]

_PRODUCT = re.compile(r"/model/layers\.(\d+)/(?:attn|mlp)/(\w+_proj)/MatMul")


def low_rank_deltas(model: ir.Model, modules: Collection[str]) -> None:
    """Add inputs `lora.L.M.a` [inputs, r] and `lora.L.M.b` [r, outputs] for every product M of a layer L.

    A product has them when it is, holds, or is part of one of `modules`. Raises ExportError for a module that no
    product stands for.
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
        raise ExportError(f"the graph has no product for {', '.join(missing)}: leave it out of --lora-modules")


def _names(product: str) -> set[str]:
    """Return the projections that a product is, holds or is part of."""
    return {product, *STACKS.get(product, ()), *(stack for stack, parts in STACKS.items() if product in parts)}


def _add_delta(model: ir.Model, product: ir.Node, name: str) -> None:
    """Add the delta behind the product's bias, where it has one: the engine computes both in one kernel."""
    rows, target = product.inputs[0], _biased(product.outputs[0])
    assert rows is not None
    assert target.shape is not None
    rank = f"{name}.r"  # of its own: the engine lets sizes of one name share buffers, and ranks differ
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
    """Add a float32 input whose default has no elements."""
    value = add_input(model, name, ir.DataType.FLOAT, shape)
    empty = np.empty([0 if isinstance(size, str) else size for size in shape], np.float32)
    value.const_value = ir.tensor(empty, name=name)
    model.graph.register_initializer(value)
    return value
