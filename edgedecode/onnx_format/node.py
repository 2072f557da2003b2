"""Reads and writes a node of an ONNX graph and its attributes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from edgedecode.duplicate_names import add_once

from .tensor import Tensor
from .wire import (
    Field,
    bytes_field,
    float_field,
    float_values,
    integer_field,
    integer_values,
    message_field,
    read_fields,
    text_field,
)

_FLOAT, _INT, _STRING, _TENSOR, _FLOATS, _INTS = 1, 2, 3, 4, 6, 7
_VALUES: Mapping[int, int] = {_FLOAT: 2, _INT: 3, _STRING: 4, _TENSOR: 5, _FLOATS: 7, _INTS: 8}
"""Attribute type → number of the field with its values."""
_NAME, _TYPE = 1, 20


@dataclass(frozen=True, slots=True)
class RawAttribute:
    """An attribute of another type (a graph, strings, an empty list, …): its full message, including the name."""

    encoded: bytes = field(repr=False)


AttributeValue: TypeAlias = "int | float | bytes | list[int] | list[float] | Tensor | RawAttribute"


@dataclass(slots=True)
class Node:
    """One operator. An omitted input or output has the name ''."""

    op_type: str
    domain: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    """Texts are bytes. An int is written as an integer and a float as a 32-bit float, so 1 and 1.0 differ."""
    rest: bytes = field(default=b"", repr=False)
    """Other fields, encoded."""

    @classmethod
    def parse(cls, data: memoryview) -> "Node":
        """Read a NodeProto. Raises ValueError for malformed bytes or a duplicate attribute."""
        node, rest = cls(""), []
        for item in read_fields(data):
            match item.number:
                case 1:
                    node.inputs.append(item.text())
                case 2:
                    node.outputs.append(item.text())
                case 3:
                    node.name = item.text()
                case 4:
                    node.op_type = item.text()
                case 5:
                    name, value = _attribute(item.message())
                    add_once(node.attributes, name, value, what="attribute")
                case 7:
                    node.domain = item.text()
                case _:
                    rest.append(item.encoded)
        node.rest = b"".join(rest)
        return node

    def fields(self) -> list[bytes]:
        """Return the encoded fields of the NodeProto."""
        parts = [text_field(1, name) for name in self.inputs] + [text_field(2, name) for name in self.outputs]
        parts += [text_field(3, self.name)] if self.name else []
        parts.append(text_field(4, self.op_type))
        parts += [bytes_field(5, _encoded(name, value)) for name, value in self.attributes.items()]
        parts += [text_field(7, self.domain)] if self.domain else []
        return [*parts, self.rest]


def _attribute(data: memoryview) -> tuple[str, AttributeValue]:
    """Return name and value; raw unless the message has exactly a name, a type and values of that type."""
    items = list(read_fields(data))
    names = [item.text() for item in items if item.number == _NAME]
    kinds = [item.integer() for item in items if item.number == _TYPE]
    name = names[-1] if names else ""
    kind = kinds[-1] if kinds else 0
    values = [item for item in items if item.number == _VALUES.get(kind)]
    plain = len(names) == len(kinds) == 1 and len(values) == len(items) - 2
    if not plain or not values or (len(values) > 1 and kind not in (_FLOATS, _INTS)):
        return name, RawAttribute(bytes(data))
    return name, _value(kind, values)


def _value(kind: int, values: list[Field]) -> AttributeValue:
    if kind == _FLOATS:
        return [number for item in values for number in float_values(item)]
    if kind == _INTS:
        return [int(number) for item in values for number in integer_values(item)]
    if kind == _FLOAT:
        return values[0].float32()
    if kind == _INT:
        return values[0].integer()
    return bytes(values[0].message()) if kind == _STRING else Tensor.parse(values[0].message())


def _encoded(name: str, value: AttributeValue) -> bytes:
    if isinstance(value, RawAttribute):
        return value.encoded
    kind, content = _encoded_value(value)
    return b"".join((text_field(_NAME, name), *content, integer_field(_TYPE, kind)))


def _encoded_value(value: int | float | bytes | list[int] | list[float] | Tensor) -> tuple[int, list[bytes]]:
    """Return the attribute's type number and the encoded fields of its value."""
    if isinstance(value, Tensor):
        return _TENSOR, [message_field(_VALUES[_TENSOR], value.fields())]
    if isinstance(value, bytes):
        return _STRING, [bytes_field(_VALUES[_STRING], value)]
    if isinstance(value, float):
        return _FLOAT, [float_field(_VALUES[_FLOAT], value)]
    if isinstance(value, int):
        return _INT, [integer_field(_VALUES[_INT], value)]
    if any(isinstance(number, float) for number in value):
        return _FLOATS, [float_field(_VALUES[_FLOATS], number) for number in value]
    return _INTS, [integer_field(_VALUES[_INTS], int(number)) for number in value]
