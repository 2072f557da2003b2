"""Writes GGUF files from fields and tensors."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

from .contents import ALIGNMENT, BLOCKS
from .fields import ARRAY, BOOL, FLOAT32, FORMATS, INT32, TEXT, UINT32, Value

F32 = 0
VERSION = 3
_ELEMENTS: Mapping[type, int] = {str: TEXT, bool: BOOL, int: INT32, float: FLOAT32}


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor to write. shape: fastest dimension first. type: ggml's number.

    data: the bytes, or a callable that yields them piece by piece when the tensor is written.
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
    """Write a file. Values become texts, unsigned 32-bit integers or 32-bit floats, by their Python type."""
    write_encoded(file, [encoded_field(name, value) for name, value in fields.items()], tensors)


def write_encoded(file: BinaryIO, fields: Sequence[bytes], tensors: Sequence[WrittenTensor]) -> None:
    """Write a file with encoded fields, of which none is general.alignment."""
    infos, offset = b"", 0
    for tensor in tensors:
        infos += _text(tensor.name)
        infos += struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.type, offset)
        offset += _aligned(tensor.nbytes)
    head = b"GGUF" + struct.pack("<IQQ", VERSION, len(tensors), len(fields)) + b"".join(fields) + infos
    file.write(head.ljust(_aligned(len(head)), b"\0"))
    for tensor in tensors:
        for piece in (tensor.data,) if isinstance(tensor.data, bytes) else tensor.data():
            file.write(piece)
        file.write(bytes(_aligned(tensor.nbytes) - tensor.nbytes))


def encoded_field(
    name: str, value: Value | Sequence[Value], *, kind: int | None = None, element: int | None = None
) -> bytes:
    """Encode a field. kind, element: GGUF's numbers of the value type and of an array's element type.

    Without `kind`, the value is a text, an unsigned 32-bit integer or a 32-bit float. Without `element`, integers in
    arrays are signed. Raises ValueError for a value of another kind.
    """
    if kind is None:
        kind = TEXT if isinstance(value, str) else FLOAT32 if isinstance(value, float) else UINT32
    return _text(name) + struct.pack("<I", kind) + _value(value, kind, element=element)


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


def _value(value: Value | Sequence[Value], kind: int, *, element: int | None = None) -> bytes:
    if kind == ARRAY:
        if not isinstance(value, (list, tuple)) or (element is None and not value):
            raise ValueError(f"{str(value)[:40]!r} is no array whose elements have a type")
        element = _ELEMENTS[type(value[0])] if element is None else element
        items = b"".join(_value(item, element) for item in value)
        return struct.pack("<IQ", element, len(value)) + items
    if isinstance(value, str) and kind == TEXT:
        return _text(value)
    if kind not in FORMATS:
        raise ValueError(f"{str(value)[:40]!r} cannot be of GGUF's type {kind}")
    try:
        return struct.pack("<" + FORMATS[kind], value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{str(value)[:40]!r} is not of GGUF's type {kind}: {error}") from None


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
