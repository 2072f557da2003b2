"""Decodes and encodes protobuf's wire format (https://protobuf.dev/programming-guides/encoding)."""

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_KINDS = {8: FIXED64, 4: FIXED32}
_FIXED = {kind: nbytes for nbytes, kind in _FIXED_KINDS.items()}
_Octets: TypeAlias = bytes | memoryview | mmap
_VARINT_NBYTES = 10
_CHUNK_NBYTES = 1 << 18
"""Packed integers are decoded in chunks, because numpy's temporary arrays are many times their size."""


class Field(NamedTuple):
    """One field of a message. Its views share the message's memory."""

    number: int
    kind: int
    """The wire type."""
    value: int
    """The unsigned integer of a VARINT field; else 0."""
    content: memoryview
    """The bytes of any other field, without tag and length."""
    encoded: memoryview
    """The full field, including its tag."""

    def integer(self) -> int:
        """Return the value as a signed 64-bit integer. Raises ValueError for another wire type."""
        self._expect(VARINT)
        return self.value - (1 << 64) if self.value >> 63 else self.value

    def message(self) -> memoryview:
        """Return the bytes of a message, a text or packed numbers. Raises ValueError for another wire type."""
        self._expect(BYTES)
        return self.content

    def text(self) -> str:
        """Return a UTF-8 text. Raises ValueError for another wire type or encoding."""
        try:
            return str(self.message(), "utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"field {self.number} is not UTF-8 text") from None

    def float32(self) -> float:
        """Return a 32-bit float. Raises ValueError for another wire type."""
        self._expect(FIXED32)
        return float(struct.unpack("<f", self.content)[0])

    def _expect(self, kind: int) -> None:
        if self.kind != kind:
            raise ValueError(f"field {self.number} has wire type {self.kind} instead of {kind}")


def read_fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order. Raises ValueError for truncated or malformed bytes."""
    before = 0
    for number, kind, value, start, end in read_spans(data, 0, len(data)):
        yield Field(number, kind, value, data[start:end], data[before:end])
        before = end


def read_spans(data: _Octets, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, value, content start and content end of each field of data[start:end].

    Yields plain tuples without slicing, because most of a graph's tens of thousands of fields are never read. Raises
    ValueError for truncated or malformed bytes.
    """
    offset = start
    while offset < end:
        tag = data[offset]
        if tag < 0x80:  # fast path: nearly all varints take one byte
            offset += 1
        else:
            tag, offset = _read_varint(data, offset, end)
        number, kind, value, length = tag >> 3, tag & 7, 0, 0
        if not 0 < number < 1 << 29:
            raise ValueError(f"a field has the number {number}")
        if kind == BYTES:
            if offset < end and (length := data[offset]) < 0x80:
                offset += 1
            else:
                length, offset = _read_varint(data, offset, end)
        elif kind == VARINT:
            if offset < end and (value := data[offset]) < 0x80:
                offset += 1
            else:
                value, offset = _read_varint(data, offset, end)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if length > end - offset:
            raise ValueError(f"field {number} is cut off: {end - offset} of {length} bytes")
        yield number, kind, value, offset, offset + length
        offset += length


def read_pair(field: Field) -> tuple[str, str]:
    """Return the two texts of a key-value message. Raises ValueError for malformed bytes."""
    texts = {part.number: part.text() for part in read_fields(field.message()) if part.number in (1, 2)}
    return texts.get(1, ""), texts.get(2, "")


def fixed_bytes(field: Field, nbytes: int) -> bytes:
    """Return the numbers of a repeated field, `nbytes` each, little-endian, packed or single."""
    if field.kind == _FIXED_KINDS[nbytes]:
        return bytes(field.content)
    if len(packed := field.message()) % nbytes:
        raise ValueError(f"field {field.number} holds a number that is cut off")
    return bytes(packed)


def float_values(field: Field) -> list[float]:
    """Return the 32-bit floats of a repeated field. Raises ValueError for malformed bytes."""
    return [float(number) for number in np.frombuffer(fixed_bytes(field, 4), "<f4")]


def integer_values(field: Field) -> npt.NDArray[np.int64]:
    """Return the integers of a repeated field, packed or single. Raises ValueError for malformed bytes."""
    if field.kind == VARINT:
        return np.array([field.integer()], np.int64)
    packed = np.frombuffer(field.message(), np.uint8)
    pieces, offset = [np.empty(0, np.int64)], 0
    while offset < len(packed):
        piece = packed[offset : offset + _CHUNK_NBYTES]
        ends = np.flatnonzero(piece < 0x80)
        if not len(ends):
            raise ValueError(f"field {field.number} holds a number that is cut off")
        pieces.append(_unpacked(piece, ends))
        offset += int(ends[-1]) + 1
    return np.concatenate(pieces)


def _unpacked(packed: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Return the varints whose last bytes are at `ends`."""
    starts = np.concatenate((np.zeros(1, np.intp), ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _VARINT_NBYTES:
        raise ValueError(f"a number takes {longest} bytes")
    values = np.zeros(len(ends), np.uint64)
    for position in range(longest):
        longer = np.flatnonzero(lengths > position)
        bits = (packed[starts[longer] + position] & 0x7F).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * position)
    return values.view(np.int64)


def integer_field(number: int, value: int) -> bytes:
    """Encode an integer of at most 64 bits."""
    return _varint(number << 3 | VARINT) + _varint(value % (1 << 64))


def float_field(number: int, value: float) -> bytes:
    """Encode a 32-bit float. Raises ValueError for a finite value that is too large."""
    try:
        return _varint(number << 3 | FIXED32) + struct.pack("<f", value)
    except OverflowError:
        raise ValueError(f"{value} is too large for a 32-bit float") from None


def bytes_field(number: int, content: bytes) -> bytes:
    """Encode a message or raw bytes."""
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def text_field(number: int, text: str) -> bytes:
    """Encode a text."""
    return bytes_field(number, text.encode())


def message_field(number: int, parts: list[bytes]) -> bytes:
    """Encode a message from its encoded fields, with a single join."""
    return b"".join((_varint(number << 3 | BYTES), _varint(sum(map(len, parts))), *parts))


def pair_field(number: int, pair: tuple[str, str]) -> bytes:
    """Encode a key-value message."""
    return message_field(number, [text_field(1, pair[0]), text_field(2, pair[1])])


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: _Octets, offset: int, end: int) -> tuple[int, int]:
    """Return an unsigned integer of at most 64 bits, and the offset of its end."""
    value = 0
    for index in range(offset, min(end, offset + _VARINT_NBYTES)):
        byte = data[index]
        value |= (byte & 0x7F) << (7 * (index - offset))
        if byte < 0x80:
            return value & (1 << 64) - 1, index + 1
    raise ValueError(f"a number at byte {offset} is cut off or too long")
