"""Writes GGUF: fields, then tensors whose bytes the caller has. Knows the format (version 3), needs no library."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

from .fields import FLOAT32, TEXT, UINT32, Value

__all__ = ["F32", "WrittenTensor", "write_gguf"]

F32, FLOAT_NBYTES = 0, 4
ALIGNMENT = 32
VERSION = 3


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor to write: its shape, the fastest dimension first, its ggml type, and its bytes or who makes them.

    What is made is made when it is written, one tensor at a time: 32-bit floats.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    data: bytes | Callable[[], memoryview]

    @property
    def nbytes(self) -> int:
        return len(self.data) if isinstance(self.data, bytes) else FLOAT_NBYTES * prod(self.shape)


def write_gguf(file: BinaryIO, fields: Mapping[str, Value], tensors: Sequence[WrittenTensor]) -> None:
    """Write a whole file. Fields are texts, unsigned 32-bit integers or 32-bit floats, by the type of their value."""
    infos, offset = b"", 0
    for tensor in tensors:
        infos += _text(tensor.name)
        infos += struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.type, offset)
        offset += _aligned(tensor.nbytes)
    head = b"GGUF" + struct.pack("<IQQ", VERSION, len(tensors), len(fields))
    head += b"".join(_text(name) + _value(value) for name, value in fields.items()) + infos
    file.write(head.ljust(_aligned(len(head)), b"\0"))
    for tensor in tensors:
        file.write(tensor.data if isinstance(tensor.data, bytes) else tensor.data())
        file.write(bytes(_aligned(tensor.nbytes) - tensor.nbytes))


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    return struct.pack("<II", UINT32, value)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
