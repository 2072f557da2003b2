"""Stores every projection as its scheme says: MatMulNBits for blocks, MatMul or Gemm for floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ..quantize import Scheme
from ..recipe import HEAD
from ..sources import Matrix, Recorded, matrix_of
from ..stored import BlockWeight
from ..weights import Weights
from .surgery import add_weight, drop_weight, insert_before

__all__ = ["stored_projections"]

_ROUNDED_ACTIVATIONS = 4
"""The accuracy level whose kernels round activations to 8 bits: the fast ones, at every width of weights."""


def stored_projections(
    model: ir.Model,
    recorded: Mapping[str, Recorded],
    *,
    weights: Weights,
    scheme_of: Callable[[str], Scheme],
) -> None:
    """Replace every MatMul on a recorded weight; `scheme_of` is asked by the weight's name, `head` for the head."""
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
            new = _floats(model, node, weights=weights, source=source, stored=_Stored(name, scheme.bits, head))
        _replace(model, node, new)
        drop_weight(model, weight)


@dataclass(frozen=True, slots=True)
class _Stored:
    name: str
    bits: int
    head: bool


def _blocks(model: ir.Model, node: ir.Node, stored: BlockWeight) -> ir.Node:
    attributes = {
        "K": stored.source.columns,
        "N": stored.source.rows,
        "bits": stored.scheme.bits,
        "block_size": stored.scheme.block_size,
        "accuracy_level": _ROUNDED_ACTIVATIONS,
    }
    inputs = [node.inputs[0], add_weight(model, stored.packed), add_weight(model, stored.scales)]
    return ir.node("MatMulNBits", inputs, attributes, domain="com.microsoft", name=node.name)


def _floats(model: ir.Model, node: ir.Node, *, weights: Weights, source: Matrix, stored: _Stored) -> ir.Node:
    """Make a MatMul, or a Gemm for the head, whose weight then has the embedding's orientation and can be shared."""
    if stored.head:
        spec = weights.plain(stored.name, source, shape=(source.rows, source.columns), bits=stored.bits)
    else:
        spec = weights.transposed(stored.name, source, bits=stored.bits)
    weight = add_weight(model, spec)
    if stored.bits == 16:  # float16 in the file, float32 in the kernels: the engine folds the cast when it loads
        cast = ir.node("Cast", [weight], {"to": ir.DataType.FLOAT}, name=f"{node.name}/Cast")
        shape, weight = weight.shape, insert_before(node, cast)
        weight.name, weight.type, weight.shape = f"{spec.name}/float", ir.TensorType(ir.DataType.FLOAT), shape
    if stored.head:
        return ir.node("Gemm", [node.inputs[0], weight], {"transB": 1}, name=node.name)
    return ir.node("MatMul", [node.inputs[0], weight], name=node.name)


def _replace(model: ir.Model, old: ir.Node, new: ir.Node) -> None:
    """Put `new` in the place of `old`, its output under the same name."""
    result, output = insert_before(old, new), old.outputs[0]
    result.type, result.shape = output.type, output.shape
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    model.graph.remove(old, safe=True)
    result.name = output.name
