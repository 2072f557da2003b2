"""Bounds the memory that a graph's operators claim: allows known operators only, and limits constant folding.

Before the first pass an engine computes everything that depends on constants only, outside of any budget. The memory of
a pass itself is bounded by the engine's allocator.
"""

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
# fmt: on
_ALLOWED = _ONE_TO_ONE | _BROADCASTING | _OTHER
_STANDARD = ("", "ai.onnx")
_DIMENSIONS = 16
_SHAPE_ELEMENTS = 1 << 20
"""Allowance for shapes, indices and masks that valid graphs leave to constant folding."""


class UnknownOperator(ValueError):
    """An operator that is not known to be harmless; a newer version may allow it."""


@dataclass(frozen=True, slots=True)
class ConstantTensor:
    """A tensor whose content is known before the first pass."""

    elements: int
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A node: its operator, and the names of its inputs and outputs."""

    kind: str
    domain: str
    inputs: Sequence[str]
    outputs: Sequence[str]


def check_operations(operations: Sequence[Operation], constants: Mapping[str, ConstantTensor], *, folded: int) -> None:
    """Raise ValueError for an operator that no model needs, or if folded constants exceed `folded` elements.

    operations: in topological order, those of inner graphs before the outer node.
    """
    known = dict(constants)
    left = most = folded + _SHAPE_ELEMENTS
    for each in operations:
        if each.domain in _STANDARD and each.kind not in _ALLOWED:
            raise UnknownOperator(f"no model of this kind needs its operator {each.kind[:40]!r}")
        inputs = [known.get(name) for name in each.inputs if name]
        constant = [value for value in inputs if value is not None]
        if each.kind != "Constant" and len(constant) == len(inputs):
            elements = _elements(each, constant)
            left -= elements * len(each.outputs)
            dims = _broadcast(constant) if each.kind in _BROADCASTING else None
            known.update((name, ConstantTensor(elements, dims)) for name in each.outputs)
            if left < 0:
                raise ValueError(
                    f"its operator {each.kind[:40]!r} computes {elements} elements of constants, "
                    f"the limit for all operators is {most}"
                )


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
