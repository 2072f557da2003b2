"""Writes GGUF: fields, then tensors whose bytes the caller has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

from .contents import ALIGNMENT, BLOCKS
from .fields import FLOAT32, TEXT, UINT32, Value

__all__ = ["F32", "WrittenTensor", "encoded_field", "write_encoded", "write_gguf"]

F32 = 0
VERSION = 3


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


def encoded_field(name: str, value: Value) -> bytes:
    """Encode a text, an unsigned 32-bit integer or a 32-bit float under its name."""
    return _text(name) + _value(value)


def _aligned(nbytes: int, alignment: int) -> int:
    return nbytes + -nbytes % alignment


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    return struct.pack("<II", UINT32, value)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
