"""Validates an ONNX graph file of a pack from its bytes, before native code opens it.

An engine opens every file that any part of a graph names. A graph may therefore name only its weights file, and use
each byte of it for at most two tensors; `graph_memory` checks the memory that its operators claim. Protobuf merges a
field that occurs twice; this reader refuses it, because both must see the same graph. Field numbers are those of ONNX's
onnx.proto.
"""

import mmap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import TypeAlias

from edgedecode.duplicate_names import add_once

from .graph_file import ValueInfo
from .graph_memory import ConstantTensor, Operation, UnknownOperator, check_operations
from .wire import BYTES, VARINT, Field, integer_values, read_spans

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of allowed operators. Operators of edgedecode's kernels are allowed only in graphs built in memory."""
MOST_FIELDS = 1 << 17
"""A graph of 126 layers with adapters has some 100,000; more would take seconds to read."""
MOST_DEPTH = 8
MOST_DIMENSIONS = 16
_VARINT_NBYTES = 10
_STANDARD = "ai.onnx"
"""The domain of ONNX's operators, which is usually left empty."""
_FLATBUFFER = b"ORTM"
"""At byte 4, this makes ONNX Runtime parse the file in its own format, which is not checked here."""
_BRANCHING = "If"
"""The only operator that may have inner graphs; a loop may never end."""
_FILE_READERS = ("EPContext",)
"""Operators that open files themselves."""
_EXTERNAL_KEYS = ("location", "offset", "length", "checksum")
_BITS: Mapping[int, int] = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    15: 128,
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
}
"""Element type → bits per element; texts have no fixed size."""
_TEXTS = 8
_ATTENTION_TABLES = {
    ("com.microsoft", "GroupQueryAttention"): (7, 8),
    ("com.microsoft", "RotaryEmbedding"): (2, 3),
    ("", "RotaryEmbedding"): (1, 2),
}
"""The inputs that are tables of rotary angles, with one row per position, by domain and operator."""
_NORMS = {
    "SimplifiedLayerNormalization": 1,
    "RMSNormalization": 1,
    "LayerNormalization": 1,
    "SkipSimplifiedLayerNormalization": 2,
    "SkipLayerNormalization": 2,
}
"""The index of the input that is the weight."""


_Span: TypeAlias = tuple[int, int, int, int, int]
"""A field: number, wire type, value, start and end of its content, as `read_spans` yields it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The only file that a graph may read: its bare name and size. An empty name: no file."""

    name: str
    nbytes: int = 0
    folded: int = 0
    """How many of its elements the engine may convert by constant folding before the first pass."""


@dataclass(slots=True)
class CheckedGraph:
    """The interface and sizes of a validated graph."""

    inputs: dict[str, ValueInfo] = field(default_factory=dict)
    outputs: dict[str, ValueInfo] = field(default_factory=dict)
    initializers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the outer graph's initializers."""
    tables: set[str] = field(default_factory=set)
    """Names of values used as rotary tables, whose rows are positions; not all are initializers."""
    norms: set[str] = field(default_factory=set)
    """Names of values used as norm weights, as long as the hidden size or a head; not all are initializers."""

    @property
    def positions(self) -> int | None:
        """The number of positions in its rotary tables; None: it has no tables."""
        return min((shape[0] for shape in self._shapes(self.tables) if shape), default=None)

    @property
    def widths(self) -> set[int]:
        """The lengths of its norms' weights."""
        return {shape[0] for shape in self._shapes(self.norms) if len(shape) == 1}

    def _shapes(self, names: set[str]) -> Iterator[tuple[int, ...]]:
        return (self.initializers[name] for name in names if name in self.initializers)


def check_graph(path: Path, weights: Weights) -> CheckedGraph:
    """Validate the graph at `path`. The file is mapped, not loaded.

    Raises OSError, or ValueError with a short reason for malformed bytes, for a tensor outside `weights` or of another
    size than its shape, and for anything that no language model's graph needs.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise ValueError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return check_content(content, weights)


def check_content(content: bytes | mmap.mmap, weights: Weights) -> CheckedGraph:
    """Validate a graph's bytes. Raises ValueError like `check_graph`."""
    if content[4:8] == _FLATBUFFER:
        raise ValueError("it is in ONNX Runtime's own format")
    walk = _Walk(content, weights)
    walk.model()
    check_operations(walk.operations, walk.constants(), folded=weights.folded)
    return walk.found


class _Walk:
    def __init__(self, data: bytes | mmap.mmap, weights: Weights) -> None:
        self._data = data
        self._weights = weights
        self._fields_left = MOST_FIELDS
        self._ranges: Counter[tuple[int, int]] = Counter()
        """Byte ranges of external tensors in the weights file."""
        self._constants: dict[str, ConstantTensor] = {}
        self.operations: list[Operation] = []
        self.found = CheckedGraph()

    def model(self) -> None:
        graphs = [item for item in self._fields(0, len(self._data)) if self._is_graph(item[0])]
        if len(graphs) != 1:
            raise ValueError(f"an ONNX file holds one graph, this one {len(graphs)}")
        self._graph(graphs[0], depth=0)
        self._check_ranges()

    def constants(self) -> Mapping[str, ConstantTensor]:
        """Return the tensors that no input can replace."""
        return {name: value for name, value in self._constants.items() if name not in self.found.inputs}

    def _fields(self, start: int, end: int, *, once: tuple[int, ...] = ()) -> list[_Span]:
        """Return a message's fields. once: numbers of fields that may not be repeated."""
        fields = list(islice(read_spans(self._data, start, end), self._fields_left + 1))
        self._count(len(fields))
        if once:
            numbers = [item[0] for item in fields]
            for number in once:
                if numbers.count(number) > 1:
                    raise ValueError(f"the field {number} of a message occurs twice")
        return fields

    def _inside(self, item: _Span, *, once: tuple[int, ...] = ()) -> list[_Span]:
        """Return the fields of a field whose content is a message."""
        self._expect(item, BYTES)
        return self._fields(item[3], item[4], once=once)

    def _count(self, fields: int) -> None:
        self._fields_left -= fields
        if self._fields_left < 0:
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

    def _is_graph(self, number: int) -> bool:
        """Return whether a field of the model is its graph. Raises ValueError for forbidden fields."""
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
        if kind in _FILE_READERS:
            raise ValueError(f"its operator {kind} reads files")
        for attribute in attributes:
            self._attribute(attribute, kind, outputs, depth=depth)
        self.operations.append(Operation(kind, domain, inputs, outputs))
        if depth == 0:
            self._record_sizes(domain.removeprefix(_STANDARD), kind, inputs)

    def _record_sizes(self, domain: str, kind: str, inputs: list[str]) -> None:
        """Record which inputs are rotary tables, and which are norm weights."""
        for index in _ATTENTION_TABLES.get((domain, kind), ()):
            self.found.tables.update(inputs[index : index + 1])
        if kind in _NORMS:
            self.found.norms.update(inputs[_NORMS[kind] : _NORMS[kind] + 1])

    def _attribute(self, attribute: _Span, kind: str, outputs: list[str], *, depth: int) -> None:
        constant = outputs[0] if kind == "Constant" and outputs else ""
        if constant:
            self._constants.setdefault(constant, ConstantTensor(attribute[4] - attribute[3]))
        for item in self._inside(attribute, once=(5, 6)):
            number = item[0]
            if number in (5, 10):
                self._tensor(item, alias=constant)
            elif number in (6, 11):
                if kind != _BRANCHING or number == 11:
                    raise ValueError(f"its operator {kind[:40]!r} holds a graph")
                self._graph(item, depth=depth + 1)
            elif number in (22, 23):
                raise ValueError("it holds a sparse tensor")

    def _tensor(self, tensor: _Span, *, alias: str = "") -> tuple[str, tuple[int, ...]]:
        """Check a tensor and return its name and shape. alias: the name under which nodes read it, if another."""
        name, kind, location, dims = "", 0, 0, list[int]()
        entries: dict[str, str] = {}
        for item in self._inside(tensor, once=(2, 8, 9, 14)):
            number = item[0]
            if number == 1:
                dims += [self._integer(item)] if item[1] == VARINT else _sizes(self._field(item))
            elif number == 2:
                kind = self._integer(item)
            elif number == 8:
                name = self._text(item)
            elif number == 13:
                texts = {part[0]: self._text(part) for part in self._inside(item) if part[0] in (1, 2)}
                add_once(entries, texts.get(1, ""), texts.get(2, ""), what="entry of an external tensor")
            elif number == 14:
                location = self._integer(item)
        if len(dims) > MOST_DIMENSIONS or any(size < 0 for size in dims):
            raise ValueError(f"its tensor {name[:40]!r} has {len(dims)} dimensions, or a negative one")
        if kind != _TEXTS and kind not in _BITS:
            raise ValueError(f"its tensor {name[:40]!r} is of the unknown type {kind}")
        if location not in (0, 1):
            raise ValueError(f"its tensor {name[:40]!r} has the unknown data location {location}")
        if location or entries:
            self._external(name, kind, entries, count=prod(dims))
        elif prod(dims) > 8 * (tensor[4] - tensor[3]):
            raise ValueError(f"its tensor {name[:40]!r} claims {prod(dims)} elements in {tensor[4] - tensor[3]} bytes")
        found, before = ConstantTensor(prod(dims), tuple(dims)), self._constants.get(alias or name)
        if before is None or before.elements <= found.elements:  # inner graphs may reuse a name
            self._constants[alias or name] = found
        return name, tuple(dims)

    def _field(self, item: _Span) -> Field:
        """Return a small field with its content."""
        content = memoryview(self._data[item[3] : item[4]])
        return Field(item[0], item[1], item[2], content, content)

    def _check_ranges(self) -> None:
        """Refuse overlapping external tensors, since an engine may copy each. Two tensors may share one range."""
        before = 0
        for (start, end), times in sorted(self._ranges.items()):
            if start < before or times > 2:
                raise ValueError(f"its tensors overlap at byte {start} of {self._weights.name}")
            before = end

    def _external(self, name: str, kind: int, entries: Mapping[str, str], *, count: int) -> None:
        """Check that an external tensor is inside the weights file and has the size of its shape."""
        what = f"its tensor {name[:40]!r}"
        location = entries.get("location", "")
        if not self._weights.name or location != self._weights.name:
            allowed = f"{self._weights.name!r} next to it" if self._weights.name else "the graph itself"
            raise ValueError(f"{what} is stored in {location[:80]!r}, where only {allowed} is allowed")
        if unknown := [key for key in entries if key not in _EXTERNAL_KEYS]:
            raise ValueError(f"{what} has the unknown external entry {unknown[0][:40]!r}")
        if kind == _TEXTS:
            raise ValueError(f"{what} holds texts, which may not be external")
        nbytes = -(-count * _BITS[kind] // 8)
        offset, length = _unsigned(entries.get("offset", "0")), _unsigned(entries.get("length", str(nbytes)))
        if length != nbytes:
            raise ValueError(f"{what} has {length} bytes, but its shape needs {nbytes}")
        if offset + nbytes > self._weights.nbytes:
            raise ValueError(
                f"{what} ends at byte {offset + nbytes} of {location}, which has {self._weights.nbytes} bytes"
            )
        if nbytes:
            self._ranges[offset, offset + nbytes] += 1


def _sizes(item: Field) -> list[int]:
    """Return packed dimensions. Raises ValueError if there are far too many."""
    if len(item.content) > MOST_DIMENSIONS * _VARINT_NBYTES:
        raise ValueError(f"a tensor has more than {MOST_DIMENSIONS} dimensions")
    return [int(size) for size in integer_values(item)]


def _unsigned(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(f"an external tensor's offset or length is {text[:40]!r}")
    return int(text)
