"""What an ONNX graph file of a pack may hold, told from its bytes before native code sees them.

An engine reads every file that a graph names, in whatever corner of the graph. So a graph may name one file, its
weights, and each byte of it for two tensors at most; what its operators may claim is told in `onnx_memory`. Where
protobuf would merge a field that occurs twice, this reader refuses: both must see the same graph. Field numbers are
those of ONNX's onnx.proto.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgedecode.duplicate_names import add_once

from .graph_file import ValueInfo
from .graph_memory import ConstantTensor, Operation, UnknownOperator, check_operations
from .wire import BYTES, VARINT, Field, integer_values, read_spans

__all__ = ["CheckedGraph", "Weights", "check_content", "check_graph"]

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Whose operators a graph may use. Those of edgedecode's own kernels only a graph made in memory may."""
MOST_FIELDS = 1 << 17
"""A graph of 126 layers with adapters has some 100,000: more are refused before they take seconds."""
MOST_DEPTH = 8
MOST_DIMENSIONS = 16
_VARINT_NBYTES = 10
_FEW_NBYTES = 128
"""A constant this small may be a shape: its numbers are read."""
_FLATBUFFER = b"ORTM"
"""At byte 4: the engine would take the bytes for its own format, in which nothing here was checked."""
_BRANCHING = "If"
"""The one operator with inner graphs; loops need not end."""
_READERS = ("EPContext",)
"""Operators that open files by themselves."""
_PLACES = ("location", "offset", "length", "checksum")
_BITS: Mapping[int, int] = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    15: 128,
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
}
"""Bits an element, by the tensor's type; texts have no size."""
_TEXTS = 8
_ATTENTION_TABLES = {"GroupQueryAttention": (7, 8), "RotaryEmbedding": (2, 3)}
"""The inputs that are tables of angles, a row for each position."""
_NORMS = {
    "SimplifiedLayerNormalization": 1,
    "RMSNormalization": 1,
    "LayerNormalization": 1,
    "SkipSimplifiedLayerNormalization": 2,
    "SkipLayerNormalization": 2,
}
"""The input that is the weight."""


_Span: TypeAlias = tuple[int, int, int, int, int]
"""A field: number, wire type, value, and where its content starts and ends, as `read_spans` yields it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The one file that a graph may read: its bare name and size. An empty name: none."""

    name: str
    nbytes: int = 0
    folded: int = 0
    """How many elements of them the engine may have to convert before the first pass."""


@dataclass(slots=True)
class CheckedGraph:
    """What a graph says of itself."""

    inputs: dict[str, ValueInfo] = field(default_factory=dict)
    outputs: dict[str, ValueInfo] = field(default_factory=dict)
    initializers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the outer graph's."""
    tables: set[str] = field(default_factory=set)
    """Initializers whose rows are positions, where they are initializers."""
    norms: set[str] = field(default_factory=set)
    """The same, as long as the model is wide or as a head."""

    @property
    def positions(self) -> int | None:
        """How many positions its tables have; None: it has none."""
        return min((shape[0] for shape in self._shapes(self.tables) if shape), default=None)

    @property
    def widths(self) -> set[int]:
        """How long its norms' weights are."""
        return {shape[0] for shape in self._shapes(self.norms) if len(shape) == 1}

    def _shapes(self, names: set[str]) -> Iterator[tuple[int, ...]]:
        return (self.initializers[name] for name in names if name in self.initializers)


def check_graph(path: Path, weights: Weights, *, joins: bool = False) -> CheckedGraph:
    """Read the graph at `path`, which stays on the disk: only what is read of it takes memory.

    joins: the graph joins past and present itself. Raises ValueError with a short reason for bytes that are garbled,
    for a tensor outside `weights` or of another size than its shape, and for what no language model's graph needs;
    OSError.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise ValueError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return check_content(content, weights, joins=joins)


def check_content(content: bytes | mmap.mmap, weights: Weights, *, joins: bool = False) -> CheckedGraph:
    """Read a graph's bytes. Raises ValueError as `check_graph`."""
    if content[4:8] == _FLATBUFFER:
        raise ValueError("it is of the engine's own format")
    walk = _Walk(content, weights)
    walk.model()
    check_operations(walk.operations, walk.constants(), joins=joins, folded=weights.folded)
    return walk.found


class _Walk:
    def __init__(self, data: bytes | mmap.mmap, weights: Weights) -> None:
        self._data = data
        self._weights = weights
        self._left = MOST_FIELDS
        self._places: Counter[tuple[int, int]] = Counter()
        """From where to where the external tensors lie."""
        self._constants: dict[str, ConstantTensor] = {}
        self.operations: list[Operation] = []
        self.found = CheckedGraph()

    def model(self) -> None:
        graphs = [item for item in self._fields(0, len(self._data)) if self._of_model(item[0])]
        if len(graphs) != 1:
            raise ValueError(f"an ONNX file holds one graph, this one {len(graphs)}")
        self._graph(graphs[0], depth=0)
        self._check_places()

    def constants(self) -> Mapping[str, ConstantTensor]:
        """Return the tensors that no input can replace."""
        return {name: value for name, value in self._constants.items() if name not in self.found.inputs}

    def _fields(self, start: int, end: int, *, once: tuple[int, ...] = ()) -> list[_Span]:
        """Return a message's fields, `once` those that may occur in it once only."""
        fields = list(islice(read_spans(self._data, start, end), self._left + 1))
        self._count(len(fields))
        if once:
            numbers = [item[0] for item in fields]
            for number in once:
                if numbers.count(number) > 1:
                    raise ValueError(f"the field {number} of a message occurs twice")
        return fields

    def _inside(self, item: _Span, *, once: tuple[int, ...] = ()) -> list[_Span]:
        """Return the fields of a field that is a message."""
        self._expect(item, BYTES)
        return self._fields(item[3], item[4], once=once)

    def _count(self, fields: int) -> None:
        self._left -= fields
        if self._left < 0:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")

    def _expect(self, item: _Span, kind: int) -> None:
        if item[1] != kind:
            raise ValueError(f"field {item[0]} has wire type {item[1]} instead of {kind}")

    def _bytes(self, item: _Span) -> bytes:
        self._expect(item, BYTES)
        return self._data[item[3] : item[4]]

    def _text(self, item: _Span) -> str:
        try:
            return self._bytes(item).decode()
        except UnicodeDecodeError:
            raise ValueError(f"field {item[0]} is not UTF-8 text") from None

    def _integer(self, item: _Span) -> int:
        self._expect(item, VARINT)
        return item[2] - (1 << 64) if item[2] >> 63 else item[2]

    def _of_model(self, number: int) -> bool:
        """Tell whether a model's field is its graph."""
        if number in (20, 25):
            raise ValueError(f"it holds {'training steps' if number == 20 else 'functions: inline them'}")
        return number == 7

    def _graph(self, graph: _Span, *, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise ValueError(f"its graphs are nested more than {MOST_DEPTH} deep")
        for item in self._inside(graph):
            number = item[0]
            if number == 1:
                self._node(item, depth=depth)
            elif number == 5:
                name, dims = self._tensor(item)
                if depth == 0:
                    add_once(self.found.initializers, name, dims, what="initializer")
            elif number == 15:
                raise ValueError("it holds a sparse tensor")
            elif number in (11, 12) and depth == 0:
                self._expect(item, BYTES)
                self._count((item[4] - item[3]) // 8)
                value = ValueInfo.parse(memoryview(self._bytes(item)))
                values = self.found.inputs if number == 11 else self.found.outputs
                add_once(values, value.name, value, what="input or output")

    def _node(self, node: _Span, *, depth: int) -> None:
        inputs, outputs, attributes, kind, domain = list[str](), list[str](), list[_Span](), "", ""
        for item in self._inside(node, once=(4, 7)):
            number = item[0]
            if number == 1:
                inputs.append(self._text(item))
            elif number == 2:
                outputs.append(self._text(item))
            elif number == 5:
                attributes.append(item)
            elif number == 4:
                kind = self._text(item)
            elif number == 7:
                domain = self._text(item)
        if domain not in DOMAINS:
            raise UnknownOperator(f"its operator {kind[:40]!r} is of the unknown domain {domain[:40]!r}")
        if kind in _READERS:
            raise ValueError(f"its operator {kind} reads files")
        for attribute in attributes:
            self._attribute(attribute, kind, outputs, depth=depth)
        self.operations.append(Operation(kind, domain, inputs, outputs))
        if depth == 0:
            self._note(kind, inputs)

    def _note(self, kind: str, inputs: list[str]) -> None:
        """Keep which initializers are tables of positions, and which tell widths."""
        for place in _ATTENTION_TABLES.get(kind, ()):
            self.found.tables.update(inputs[place : place + 1])
        if kind in _NORMS:
            self.found.norms.update(inputs[_NORMS[kind] : _NORMS[kind] + 1])

    def _attribute(self, attribute: _Span, kind: str, outputs: list[str], *, depth: int) -> None:
        constant = outputs[0] if kind == "Constant" and outputs else ""
        if constant:
            self._constants.setdefault(constant, ConstantTensor(attribute[4] - attribute[3]))
        for item in self._inside(attribute, once=(5, 6)):
            number = item[0]
            if number in (5, 10):
                self._tensor(item, called=constant)
            elif number in (6, 11):
                if kind != _BRANCHING or number == 11:
                    raise ValueError(f"its operator {kind[:40]!r} holds a graph")
                self._graph(item, depth=depth + 1)
            elif number in (22, 23):
                raise ValueError("it holds a sparse tensor")

    def _tensor(self, tensor: _Span, *, called: str = "") -> tuple[str, tuple[int, ...]]:
        """Return name and shape. called: another name under which nodes read it."""
        name, kind, place, dims, data = "", 0, 0, list[int](), list[Field]()
        entries: dict[str, str] = {}
        for item in self._inside(tensor, once=(2, 8, 9, 14)):
            number = item[0]
            if number == 1:
                dims += [self._integer(item)] if item[1] == VARINT else _sizes(self._field(item))
            elif number == 2:
                kind = self._integer(item)
            elif number == 8:
                name = self._text(item)
            elif number in (5, 7, 9) and item[4] - item[3] <= _FEW_NBYTES:
                data.append(self._field(item))
            elif number == 13:
                texts = {part[0]: self._text(part) for part in self._inside(item) if part[0] in (1, 2)}
                add_once(entries, texts.get(1, ""), texts.get(2, ""), what="entry of an external tensor")
            elif number == 14:
                place = self._integer(item)
        if len(dims) > MOST_DIMENSIONS or any(size < 0 for size in dims):
            raise ValueError(f"its tensor {name[:40]!r} has {len(dims)} dimensions, or a negative one")
        if kind != _TEXTS and kind not in _BITS:
            raise ValueError(f"its tensor {name[:40]!r} is of the unknown type {kind}")
        if place not in (0, 1):
            raise ValueError(f"its tensor {name[:40]!r} lies at the unknown kind of place {place}")
        if place or entries:
            self._external(name, kind, entries, count=prod(dims))
        elif prod(dims) > 8 * (tensor[4] - tensor[3]):
            raise ValueError(f"its tensor {name[:40]!r} claims {prod(dims)} elements in {tensor[4] - tensor[3]} bytes")
        numbers = _numbers(kind, data) if prod(dims) <= MOST_DIMENSIONS else None
        found, before = ConstantTensor(prod(dims), tuple(dims), numbers), self._constants.get(called or name)
        if before is None or before.elements <= found.elements:  # inner graphs may use a name again
            self._constants[called or name] = found
        return name, tuple(dims)

    def _field(self, item: _Span) -> Field:
        """Return a field that is small with its content."""
        content = memoryview(self._data[item[3] : item[4]])
        return Field(item[0], item[1], item[2], content, content)

    def _check_places(self) -> None:
        """Refuse external tensors that overlap: an engine may copy each. A table that is read two ways has two."""
        before = 0
        for (start, end), times in sorted(self._places.items()):
            if start < before or times > 2:
                raise ValueError(f"its tensors overlap at byte {start} of {self._weights.name}")
            before = end

    def _external(self, name: str, kind: int, entries: Mapping[str, str], *, count: int) -> None:
        """Check that an external tensor lies inside the weights and is as long as its shape says."""
        what = f"its tensor {name[:40]!r}"
        location = entries.get("location", "")
        if not self._weights.name or location != self._weights.name:
            allowed = f"{self._weights.name!r} beside it" if self._weights.name else "the graph itself"
            raise ValueError(f"{what} lies in {location[:80]!r}, where only {allowed} is allowed")
        if unknown := [key for key in entries if key not in _PLACES]:
            raise ValueError(f"{what} has the unknown external entry {unknown[0][:40]!r}")
        if kind == _TEXTS:
            raise ValueError(f"{what} is of texts and external")
        nbytes = -(-count * _BITS[kind] // 8)
        offset, length = _whole(entries.get("offset", "0")), _whole(entries.get("length", str(nbytes)))
        if length != nbytes:
            raise ValueError(f"{what} takes {length} bytes, by its shape {nbytes}")
        if offset + nbytes > self._weights.nbytes:
            raise ValueError(
                f"{what} ends at byte {offset + nbytes} of {location}, which has {self._weights.nbytes} bytes"
            )
        if nbytes:
            self._places[offset, offset + nbytes] += 1


def _sizes(item: Field) -> list[int]:
    """Return dimensions, packed or single, unless there are far too many."""
    if len(item.content) > MOST_DIMENSIONS * _VARINT_NBYTES:
        raise ValueError(f"a tensor has more than {MOST_DIMENSIONS} dimensions")
    return [int(size) for size in integer_values(item)]


def _numbers(kind: int, data: list[Field]) -> tuple[int, ...] | None:
    """Return the integers of a small tensor of 32 or 64 bits; None for other types."""
    if kind not in (6, 7):
        return None
    raw = b"".join(field.content for field in data if field.number == 9)
    if len(raw) % (_BITS[kind] // 8):
        raise ValueError(f"a small tensor has {len(raw)} bytes, which are no numbers of {_BITS[kind]} bits")
    listed = [int(number) for field in data if field.number != 9 for number in integer_values(field)]
    return (*(int(number) for number in np.frombuffer(raw, f"<i{_BITS[kind] // 8}")), *listed)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(f"an external tensor's offset or length is {text[:40]!r}")
    return int(text)
