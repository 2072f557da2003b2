"""How much memory the operators of a graph claim: which ones a graph may use, and what its constants grow to.

An engine computes before the first pass whatever depends on constants only, in memory that no budget sees; what a pass
computes is bounded by the engine's allocator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

__all__ = ["ConstantTensor", "Operation", "UnknownOperator", "check_operations"]

# fmt: off
_ONE_TO_ONE = frozenset((
    "Abs", "Cast", "Ceil", "Clip", "Cos", "CumSum", "Elu", "Erf", "Exp", "Flatten", "Floor", "Gelu", "HardSigmoid",
    "Identity", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "Not",
    "RMSNormalization", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Reshape", "Round", "Shape", "Sigmoid", "Sign", "SimplifiedLayerNormalization",
    "Sin", "Size", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Tanh", "Transpose", "Trilu",
    "Unsqueeze",
))
"""Operators whose output has no more elements than their largest input."""
_BROADCASTING = frozenset((
    "Add", "And", "BitShift", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min",
    "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
))
_OTHER = frozenset((
    "Concat", "Constant", "Conv", "Einsum", "Gather", "GatherElements", "GatherND", "Gemm", "If", "MatMul",
    "ScatterElements", "ScatterND", "TopK",
))
_SIZED = frozenset((
    "ConstantOfShape", "Expand", "Range", "Tile",
))
"""Operators whose output is as large as the numbers of an input say."""
# fmt: on
_JOINING = frozenset({"DequantizeLinear", "Pad"}) | _SIZED
"""What only graphs need that make their masks and positions themselves, as those of optimum."""
_ALLOWED = _ONE_TO_ONE | _BROADCASTING | _OTHER
_STANDARD = ("", "ai.onnx")
_DIMENSIONS = 16
_FEW = 1 << 20
"""Elements of shapes, indices and masks that sound graphs leave to the engine."""


class UnknownOperator(ValueError):
    """An operator that is not known to be harmless; a newer version may know it."""


@dataclass(frozen=True, slots=True)
class ConstantTensor:
    """A tensor whose content is known before the first pass. numbers: its integers, where they are few."""

    elements: int
    dims: tuple[int, ...] | None = None
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A node: what it is called, and which values it reads and writes."""

    kind: str
    domain: str
    inputs: Sequence[str]
    outputs: Sequence[str]


def check_operations(
    operations: Sequence[Operation], constants: Mapping[str, ConstantTensor], *, joins: bool, folded: int
) -> None:
    """Raise ValueError for an operator that no model needs, and for constants that grow beyond `folded` elements.

    operations: in the order of their values, inner graphs' before the outer node. joins: the graph joins past and
    present itself.
    """
    known = dict(constants)
    allowed, most = _ALLOWED | _JOINING if joins else _ALLOWED, folded + _FEW
    left = most
    for each in operations:
        if each.domain in _STANDARD and each.kind not in allowed:
            raise UnknownOperator(f"no model of this kind needs its operator {each.kind[:40]!r}")
        inputs = [known.get(name) for name in each.inputs if name]
        elements = _sized(each.kind, inputs) if each.kind in _SIZED else 0
        settled = [value for value in inputs if value is not None]
        if each.kind != "Constant" and len(settled) == len(inputs):
            elements = elements or _elements(each, settled)
            left -= elements * len(each.outputs)
            dims = _common(settled) if each.kind in _BROADCASTING else None
            known.update((name, ConstantTensor(elements, dims)) for name in each.outputs)
        if elements > most or left < 0:
            raise ValueError(
                f"its operator {each.kind[:40]!r} makes {elements} elements of constants, {most} are usual"
            )


def _sized(kind: str, inputs: Sequence[ConstantTensor | None]) -> int:
    """Return how many elements constant sizes ask for; 0: they are not constant."""
    numbers = [None if value is None else value.numbers for value in inputs]
    if kind == "Range":
        start, end, step = (each[0] if each else None for each in (*numbers, None, None, None)[:3])
        return 0 if start is None or end is None or not step else max(0, -((start - end) // step)) + 1
    sizes = numbers[-1] if numbers else None
    if sizes is None:
        return 0
    first = inputs[0] if kind != "ConstantOfShape" else None
    return prod(max(1, size) for size in sizes) * (1 if first is None else first.elements)


def _elements(operation: Operation, inputs: Sequence[ConstantTensor]) -> int:
    """Bound the elements of an operator that reads constants only."""
    kind, sizes = operation.kind, [value.elements for value in inputs]
    if operation.domain in _STANDARD and sizes:
        if kind in ("Shape", "Size"):
            return _DIMENSIONS
        if kind in _ONE_TO_ONE:
            return max(sizes)
        if kind == "Concat":
            return sum(sizes)
        if kind in _BROADCASTING and (dims := _common(inputs)) is not None:
            return prod(dims)
        if kind == "Gather" and inputs[0].dims and min(inputs[0].dims):
            return prod(sizes) // min(inputs[0].dims)
        if kind in _OTHER - {"If"} or kind in _BROADCASTING:
            return prod(sizes)
    raise ValueError(f"its operator {kind[:40]!r} computes from constants only, and how much is not told")


def _common(inputs: Sequence[ConstantTensor]) -> tuple[int, ...] | None:
    """Return the shape that these are broadcast to; None: one of them is unknown."""
    shapes = [value.dims for value in inputs]
    if None in shapes:
        return None
    padded = zip_longest(*(reversed(shape) for shape in shapes if shape is not None), fillvalue=1)
    return tuple(max(sizes) for sizes in padded)[::-1]
