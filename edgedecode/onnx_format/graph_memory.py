"""Bounds the memory that a graph's operators claim: allows known operators only, and limits constant folding.

Before the first pass an engine computes everything that depends on constants only, outside of any budget. The memory of
a pass itself is bounded by the engine's allocator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

# fmt: off
_ONE_TO_ONE = frozenset((
    "Abs", "Cast", "Ceil", "Clip", "Cos", "CumSum", "Elu", "Erf", "Exp", "Flatten", "Floor", "Gelu", "HardSigmoid",
    "Identity", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "Not",
    "RMSNormalization", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Reshape", "RotaryEmbedding", "Round", "Shape", "Sigmoid", "Sign",
    "SimplifiedLayerNormalization", "Sin", "Size", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze",
    "Tanh", "Transpose", "Trilu", "Unsqueeze",
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
"""Operators whose output size is given by the values of an input."""
# fmt: on
_CONCAT_ONLY = frozenset({"DequantizeLinear", "Pad"}) | _SIZED
"""Operators needed only by graphs that compute masks and positions themselves, such as optimum's."""
_ALLOWED = _ONE_TO_ONE | _BROADCASTING | _OTHER
_STANDARD = ("", "ai.onnx")
_DIMENSIONS = 16
_SHAPE_ELEMENTS = 1 << 20
"""Allowance for shapes, indices and masks that valid graphs leave to constant folding."""


class UnknownOperator(ValueError):
    """An operator that is not known to be harmless; a newer version may allow it."""


@dataclass(frozen=True, slots=True)
class ConstantTensor:
    """A tensor whose content is known before the first pass. numbers: its integers, if it is small."""

    elements: int
    dims: tuple[int, ...] | None = None
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A node: its operator, and the names of its inputs and outputs."""

    kind: str
    domain: str
    inputs: Sequence[str]
    outputs: Sequence[str]


def check_operations(
    operations: Sequence[Operation], constants: Mapping[str, ConstantTensor], *, joins: bool, folded: int
) -> None:
    """Raise ValueError for an operator that no model needs, or if folded constants exceed `folded` elements.

    operations: in topological order, those of inner graphs before the outer node. joins: the graph concatenates past
    and present keys and values itself.
    """
    known = dict(constants)
    allowed, most = _ALLOWED | _CONCAT_ONLY if joins else _ALLOWED, folded + _SHAPE_ELEMENTS
    left = most
    for each in operations:
        if each.domain in _STANDARD and each.kind not in allowed:
            raise UnknownOperator(f"no model of this kind needs its operator {each.kind[:40]!r}")
        inputs = [known.get(name) for name in each.inputs if name]
        elements = _sized(each.kind, inputs) if each.kind in _SIZED else 0
        constant = [value for value in inputs if value is not None]
        if each.kind != "Constant" and len(constant) == len(inputs):
            elements = elements or _elements(each, constant)
            left -= elements * len(each.outputs)
            dims = _broadcast(constant) if each.kind in _BROADCASTING else None
            known.update((name, ConstantTensor(elements, dims)) for name in each.outputs)
        if elements > most or left < 0:
            raise ValueError(
                f"its operator {each.kind[:40]!r} computes {elements} elements of constants, "
                f"the limit for all operators is {most}"
            )


def _sized(kind: str, inputs: Sequence[ConstantTensor | None]) -> int:
    """Return the number of output elements that constant sizes request; 0: the sizes are not constant."""
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
    """Return an upper bound of the elements of an operator that reads constants only."""
    kind, sizes = operation.kind, [value.elements for value in inputs]
    if operation.domain in _STANDARD and sizes:
        if kind in ("Shape", "Size"):
            return _DIMENSIONS
        if kind in _ONE_TO_ONE:
            return max(sizes)
        if kind == "Concat":
            return sum(sizes)
        if kind in _BROADCASTING and (dims := _broadcast(inputs)) is not None:
            return prod(dims)
        if kind == "Gather" and inputs[0].dims and min(inputs[0].dims):
            return prod(sizes) // min(inputs[0].dims)
        if kind in _OTHER - {"If"} or kind in _BROADCASTING:
            return prod(sizes)
    raise ValueError(f"its operator {kind[:40]!r} computes a constant of unknown size")


def _broadcast(inputs: Sequence[ConstantTensor]) -> tuple[int, ...] | None:
    """Return the shape that the inputs broadcast to; None: a shape is unknown."""
    shapes = [value.dims for value in inputs]
    if None in shapes:
        return None
    padded = zip_longest(*(reversed(shape) for shape in shapes if shape is not None), fillvalue=1)
    return tuple(max(sizes) for sizes in padded)[::-1]
