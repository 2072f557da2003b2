"""What an ONNX graph file of a pack may hold, told from its bytes before native code sees them. Opens no session.

An engine reads every file that a graph names, in whatever corner of the graph, and computes before the first pass what
is constant. So a graph may name one file, its weights, and has no way to claim much with few bytes. Where protobuf
would join the parts of a field that stands twice, this reader refuses: both must see the same graph. Field numbers are
those of ONNX's onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from .onnx_file import ValueInfo
from .wire_format import Field, add_once, integer_values, read_fields, read_pair

__all__ = ["CheckedGraph", "Weights", "check_content", "check_graph"]

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Whose operators a graph may use. Those of edgedecode's own kernels only a graph made in memory may."""
MOST_FIELDS = 1 << 17
"""A graph of 126 layers with adapters has some 100,000: more are refused before they take seconds."""
MOST_DEPTH = 8
MOST_DIMENSIONS = 16
_VARINT_NBYTES = 10
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


@dataclass(frozen=True, slots=True)
class Weights:
    """The one file that a graph may read: its bare name and size. An empty name: none."""

    name: str
    nbytes: int = 0


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


def check_graph(path: Path, weights: Weights) -> CheckedGraph:
    """Read the graph at `path`, which stays on the disk: only what is read of it takes memory.

    Raises ValueError with a short reason for bytes that are garbled, for a tensor outside `weights` or of another size
    than its shape, and for what no language model's graph needs; OSError.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise ValueError("it is empty")
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return check_content(content, weights)


def check_content(content: memoryview, weights: Weights) -> CheckedGraph:
    """Read a graph's bytes. Raises ValueError as `check_graph`."""
    if bytes(content[4:8]) == _FLATBUFFER:
        raise ValueError("it is of the engine's own format")
    walk = _Walk(weights)
    walk.model(content)
    return walk.found


class _Walk:
    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._left = MOST_FIELDS
        self.found = CheckedGraph()

    def model(self, data: memoryview) -> None:
        graphs = [item for item in self._fields(data) if self._of_model(item)]
        if len(graphs) != 1:
            raise ValueError(f"an ONNX file holds one graph, this one {len(graphs)}")
        self._graph(graphs[0].message(), depth=0)

    def _fields(self, data: memoryview, *, once: tuple[int, ...] = ()) -> Iterator[Field]:
        """Yield a message's fields, `once` those that may stand there once only."""
        seen = set[int]()
        for item in read_fields(data):
            self._count(1)
            if item.number in once and item.number in seen:
                raise ValueError(f"the field {item.number} of a message stands there twice")
            seen.add(item.number)
            yield item

    def _count(self, fields: int) -> None:
        self._left -= fields
        if self._left < 0:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")

    def _of_model(self, item: Field) -> bool:
        """Tell whether a model's field is its graph."""
        if item.number in (20, 25):
            raise ValueError(f"it holds {'training steps' if item.number == 20 else 'functions: inline them'}")
        return item.number == 7

    def _graph(self, data: memoryview, *, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise ValueError(f"its graphs are nested more than {MOST_DEPTH} deep")
        for item in self._fields(data):
            if item.number == 1:
                self._node(item.message(), depth=depth)
            elif item.number == 5:
                name, dims = self._tensor(item.message())
                if depth == 0:
                    add_once(self.found.initializers, name, dims, what="initializer")
            elif item.number == 15:
                raise ValueError("it holds a sparse tensor")
            elif item.number in (11, 12) and depth == 0:
                self._count(len(item.message()) // 8)
                value = ValueInfo.parse(item.message())
                values = self.found.inputs if item.number == 11 else self.found.outputs
                add_once(values, value.name, value, what="input or output")

    def _node(self, data: memoryview, *, depth: int) -> None:
        inputs: list[str] = []
        attributes: list[memoryview] = []
        texts = {4: "", 7: ""}
        for item in self._fields(data, once=(4, 7)):
            if item.number == 1:
                inputs.append(item.text())
            elif item.number == 5:
                attributes.append(item.message())
            elif item.number in texts:
                texts[item.number] = item.text()
        kind, domain = texts[4], texts[7]
        if domain not in DOMAINS:
            raise ValueError(f"its operator {kind[:40]!r} is of the unknown domain {domain[:40]!r}")
        if kind in _READERS:
            raise ValueError(f"its operator {kind} reads files")
        for attribute in attributes:
            self._attribute(attribute, kind, depth=depth)
        if depth == 0:
            self._note(kind, inputs)

    def _note(self, kind: str, inputs: list[str]) -> None:
        """Keep which initializers speak of positions and of widths."""
        for place in _ATTENTION_TABLES.get(kind, ()):
            self.found.tables.update(inputs[place : place + 1])
        if kind in _NORMS:
            self.found.norms.update(inputs[_NORMS[kind] : _NORMS[kind] + 1])

    def _attribute(self, data: memoryview, kind: str, *, depth: int) -> None:
        for item in self._fields(data, once=(5, 6)):
            if item.number in (5, 10):
                self._tensor(item.message())
            elif item.number in (6, 11):
                if kind != _BRANCHING or item.number == 11:
                    raise ValueError(f"its operator {kind[:40]!r} holds a graph")
                self._graph(item.message(), depth=depth + 1)
            elif item.number in (22, 23):
                raise ValueError("it holds a sparse tensor")

    def _tensor(self, data: memoryview) -> tuple[str, tuple[int, ...]]:
        """Return name and shape."""
        name, kind, place, dims = "", 0, 0, list[int]()
        entries: dict[str, str] = {}
        for item in self._fields(data, once=(2, 8, 9, 14)):
            if item.number == 1:
                dims += _sizes(item)
            elif item.number == 2:
                kind = item.integer()
            elif item.number == 8:
                name = item.text()
            elif item.number == 13:
                self._count(len(item.message()) // 8)
                add_once(entries, *read_pair(item), what="entry of an external tensor")
            elif item.number == 14:
                place = item.integer()
        if len(dims) > MOST_DIMENSIONS or any(size < 0 for size in dims):
            raise ValueError(f"its tensor {name[:40]!r} has {len(dims)} dimensions, or a negative one")
        if kind != _TEXTS and kind not in _BITS:
            raise ValueError(f"its tensor {name[:40]!r} is of the unknown type {kind}")
        if place not in (0, 1):
            raise ValueError(f"its tensor {name[:40]!r} lies at the unknown kind of place {place}")
        if place or entries:
            self._external(name, kind, entries, count=prod(dims))
        elif prod(dims) > 8 * len(data):
            raise ValueError(f"its tensor {name[:40]!r} claims {prod(dims)} elements in {len(data)} bytes")
        return name, tuple(dims)

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


def _sizes(item: Field) -> list[int]:
    """Return dimensions, packed or single, unless there are far too many."""
    if len(item.content) > MOST_DIMENSIONS * _VARINT_NBYTES:
        raise ValueError(f"a tensor has more than {MOST_DIMENSIONS} dimensions")
    return [int(size) for size in integer_values(item)]


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(f"an external tensor's offset or length is {text[:40]!r}")
    return int(text)
