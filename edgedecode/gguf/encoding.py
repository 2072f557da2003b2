"""Writes GGUF: fields, then tensors whose bytes the caller has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

from .contents import ALIGNMENT, BLOCKS
from .fields import ARRAY, BOOL, FLOAT32, FORMATS, INT32, TEXT, UINT32, Value

__all__ = ["F32", "WrittenTensor", "encoded_field", "write_encoded", "write_gguf"]

F32 = 0
VERSION = 3
_ELEMENTS: Mapping[type, int] = {str: TEXT, bool: BOOL, int: INT32, float: FLOAT32}


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor to write: its shape, the fastest dimension first, its ggml type, and its bytes or who makes them.

    What is made is made when it is written, one piece at a time.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    data: bytes | Callable[[], Iterable[bytes | memoryview]]

    @property
    def nbytes(self) -> int:
        if isinstance(self.data, bytes):
            return len(self.data)
        block, nbytes = BLOCKS[self.type]
        return prod(self.shape) // block * nbytes


def write_gguf(file: BinaryIO, fields: Mapping[str, Value], tensors: Sequence[WrittenTensor]) -> None:
    """Write a whole file. Fields are texts, unsigned 32-bit integers or 32-bit floats, by the type of their value."""
    write_encoded(file, [encoded_field(name, value) for name, value in fields.items()], tensors)


def write_encoded(
    file: BinaryIO, fields: Sequence[bytes], tensors: Sequence[WrittenTensor], *, alignment: int = ALIGNMENT
) -> None:
    """Write a whole file whose fields are encoded already; `alignment` is what they say of it."""
    infos, offset = b"", 0
    for tensor in tensors:
        infos += _text(tensor.name)
        infos += struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.type, offset)
        offset += _aligned(tensor.nbytes, alignment)
    head = b"GGUF" + struct.pack("<IQQ", VERSION, len(tensors), len(fields)) + b"".join(fields) + infos
    file.write(head.ljust(_aligned(len(head), alignment), b"\0"))
    for tensor in tensors:
        for piece in (tensor.data,) if isinstance(tensor.data, bytes) else tensor.data():
            file.write(piece)
        file.write(bytes(_aligned(tensor.nbytes, alignment) - tensor.nbytes))


def encoded_field(
    name: str, value: Value | Sequence[Value], *, kind: int | None = None, element: int | None = None
) -> bytes:
    """Encode a value under its name. kind, element: GGUF's numbers of its type and of an array's elements' type.

    By themselves a text, an unsigned 32-bit integer and a 32-bit float are told apart; in arrays integers are signed.
    """
    if kind is None:
        kind = TEXT if isinstance(value, str) else FLOAT32 if isinstance(value, float) else UINT32
    return _text(name) + struct.pack("<I", kind) + _value(value, kind, element=element)


def _aligned(nbytes: int, alignment: int) -> int:
    return nbytes + -nbytes % alignment


def _value(value: Value | Sequence[Value], kind: int, *, element: int | None = None) -> bytes:
    if kind == ARRAY:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{value!r} is not an array")
        element = _ELEMENTS[type(value[0])] if element is None else element
        items = b"".join(_value(item, element) for item in value)
        return struct.pack("<IQ", element, len(value)) + items
    if isinstance(value, str) and kind == TEXT:
        return _text(value)
    return struct.pack("<" + FORMATS[kind], value)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
