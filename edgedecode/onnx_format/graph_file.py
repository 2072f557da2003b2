"""Reads, changes and writes ONNX graph files without the onnx package.

Other fields (value infos, functions, doc strings, subgraphs, …), and tensors and value descriptions that were not
replaced, are written back as the original bytes. Field numbers are those of ONNX's onnx.proto.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgedecode.duplicate_names import add_once

from .node import Node
from .tensor import Tensor
from .wire import Field, integer_field, message_field, pair_field, read_fields, read_pair, text_field


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output of the graph: its name, element type (ONNX's number) and dimensions.

    A dimension is a size, a name or None (unknown). dims None: unknown rank, or not a tensor (elem_type 0).
    """

    name: str
    elem_type: int
    dims: Sequence[int | str | None] | None
    rest: bytes = field(default=b"", repr=False)
    """Other fields, encoded."""
    _source: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """The message it was parsed from; None for a description made by `replace`."""

    @classmethod
    def parse(cls, data: memoryview) -> "ValueInfo":
        """Read a ValueInfoProto. Raises ValueError for malformed bytes."""
        name, kind, rest = "", 0, []
        dims: Sequence[int | str | None] | None = None
        for item in read_fields(data):
            if item.number == 1:
                name = item.text()
            elif item.number == 2 and (tensor := _tensor_type(item.message())) is not None:
                kind, dims = _element_and_dims(tensor)
            else:
                rest.append(item.encoded)
        value = cls(name, kind, dims, b"".join(rest))
        object.__setattr__(value, "_source", bytes(data))
        return value

    def fields(self) -> list[bytes]:
        """Return the encoded fields of the ValueInfoProto."""
        if self._source is not None:
            return [self._source]
        parts = [text_field(1, self.name)]
        if self.elem_type or self.dims is not None:
            tensor = [integer_field(1, self.elem_type)]
            if self.dims is not None:
                tensor.append(message_field(2, [message_field(1, _dimension(size)) for size in self.dims]))
            parts.append(message_field(2, [message_field(1, tensor)]))
        return [*parts, self.rest]


@dataclass(slots=True)
class GraphFile:
    """A model file. Its lists and dicts may be changed in place before `serialize`."""

    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(default_factory=dict)
    """Name → tensor of that name."""
    inputs: list[ValueInfo] = field(default_factory=list)
    outputs: list[ValueInfo] = field(default_factory=list)
    opset: dict[str, int] = field(default_factory=dict)
    """Domain → version; the standard domain is ''."""
    metadata: dict[str, str] = field(default_factory=dict)
    graph_rest: list[tuple[int, bytes]] = field(default_factory=list, repr=False)
    """Other fields of the graph: number and encoding."""
    model_rest: list[tuple[int, bytes]] = field(default_factory=list, repr=False)
    """Other fields of the model."""
    _opset_source: dict[tuple[str, int], bytes] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Original opset entries: the standard domain is either written as '' or omitted."""

    @classmethod
    def parse(cls, data: bytes | memoryview) -> "GraphFile":
        """Read a file's bytes.

        Raises ValueError with a short reason for truncated or malformed bytes, and for duplicate names (initializers,
        attributes, domains). Memory is proportional to the bytes, not to the sizes that they claim.
        """
        file, graphs = cls(), 0
        for item in read_fields(memoryview(data).cast("B")):
            if item.number == 7:
                graphs += 1
                file._read_graph(item.message())
            elif item.number == 8:
                domain, version = _opset(item)
                add_once(file.opset, domain, version, what="opset of the domain")
                file._opset_source[domain, version] = bytes(item.encoded)
            elif item.number == 14:
                add_once(file.metadata, *read_pair(item), what="metadata entry")
            else:
                file.model_rest.append((item.number, bytes(item.encoded)))
        if graphs != 1:
            raise ValueError(f"an ONNX file holds one graph, this one {graphs}")
        return file

    def serialize(self) -> bytes:
        """Return the file's bytes."""
        parts = [*self.model_rest, (7, message_field(7, self._graph()))]
        for domain, version in self.opset.items():
            fresh = message_field(8, [text_field(1, domain), integer_field(2, version)])
            parts.append((8, self._opset_source.get((domain, version), fresh)))
        parts += [(14, pair_field(14, pair)) for pair in self.metadata.items()]
        return b"".join(_ordered(parts))

    def producer(self, name: str) -> Node | None:
        """Return the node that computes a value; None: an input or initializer."""
        return next((node for node in self.nodes if name in node.outputs), None)

    def consumers(self, name: str) -> list[Node]:
        """Return the nodes that read a value."""
        return [node for node in self.nodes if name in node.inputs]

    def _read_graph(self, data: memoryview) -> None:
        for item in read_fields(data):
            if item.number == 1:
                self.nodes.append(Node.parse(item.message()))
            elif item.number == 5:
                tensor = Tensor.parse(item.message())
                add_once(self.initializers, tensor.name, tensor, what="initializer")
            elif item.number == 11:
                self.inputs.append(ValueInfo.parse(item.message()))
            elif item.number == 12:
                self.outputs.append(ValueInfo.parse(item.message()))
            else:
                self.graph_rest.append((item.number, bytes(item.encoded)))

    def _graph(self) -> list[bytes]:
        parts = [*self.graph_rest, *((1, message_field(1, node.fields())) for node in self.nodes)]
        for name, tensor in self.initializers.items():
            assert tensor.name == name, f"the initializer {name!r} is called {tensor.name!r}"
            parts.append((5, message_field(5, tensor.fields())))
        for number, values in ((11, self.inputs), (12, self.outputs)):
            parts += [(number, message_field(number, value.fields())) for value in values]
        return _ordered(parts)


def _ordered(parts: list[tuple[int, bytes]]) -> list[bytes]:
    """Return encoded fields sorted by number; the sort is stable."""
    return [encoded for _, encoded in sorted(parts, key=lambda part: part[0])]


def _opset(item: Field) -> tuple[str, int]:
    domain, version = "", 0
    for part in read_fields(item.message()):
        if part.number == 1:
            domain = part.text()
        elif part.number == 2:
            version = part.integer()
    return domain, version


def _tensor_type(data: memoryview) -> memoryview | None:
    """Return the tensor type inside a type; None for other types (a sequence, an optional, with a denotation, …)."""
    items = list(read_fields(data))
    return items[0].message() if len(items) == 1 and items[0].number == 1 else None


def _element_and_dims(data: memoryview) -> tuple[int, tuple[int | str | None, ...] | None]:
    kind, dims = 0, None
    for item in read_fields(data):
        if item.number == 1:
            kind = item.integer()
        elif item.number == 2:
            dims = tuple(_size(part.message()) for part in read_fields(item.message()) if part.number == 1)
    return kind, dims


def _size(data: memoryview) -> int | str | None:
    size: int | str | None = None
    for item in read_fields(data):
        if item.number == 1:
            size = item.integer()
        elif item.number == 2:
            size = item.text()
    return size


def _dimension(size: int | str | None) -> list[bytes]:
    if size is None:
        return []
    return [text_field(2, size) if isinstance(size, str) else integer_field(1, size)]
