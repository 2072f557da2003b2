"""Reads and writes a tensor of an ONNX graph, whose values are in the graph or in an external file."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .wire import (
    Field,
    bytes_field,
    fixed_bytes,
    integer_field,
    integer_values,
    pair_field,
    read_fields,
    read_pair,
    text_field,
)

_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_FLOATS, _INT32, _STRINGS, _INT64, _DOUBLES, _UINT64 = 4, 5, 6, 7, 10, 11
_FIXED: Mapping[int, int] = {_FLOATS: 4, _DOUBLES: 8}
_WIDTHS: Mapping[int, str] = {_INT32: "<i4", _INT64: "<i8", _UINT64: "<u8"}
_TYPED = (*_FIXED, *_WIDTHS)
_STORED: Mapping[int, str] = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26), "u1"),  # of 8 bits or fewer
    **dict.fromkeys((4, 5, 10, 16), "<u2"),
    12: "<u4",
}
"""Element type → dtype among raw elements, where the integer field stores wider entries."""
_DIGITS = 19


@dataclass(frozen=True, slots=True)
class ExternalData:
    """The location of a tensor's bytes: a file in the graph's folder, an offset, and a length (None: to the end)."""

    location: str
    offset: int = 0
    length: int | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    """Further entries, such as a checksum."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its name, element type (ONNX's number), dimensions and data.

    raw: the elements in little-endian order; None if they are external or texts. Typed numbers are converted to it,
    which can take up to 8 times their size in the file.
    """

    name: str
    data_type: int
    dims: tuple[int, ...]
    raw: bytes | None = field(default=None, repr=False)
    external: ExternalData | None = None
    rest: bytes = field(default=b"", repr=False)
    """Other fields, encoded."""
    _source: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """The message it was parsed from; None for a tensor made by `replace`."""

    @classmethod
    def parse(cls, data: memoryview) -> "Tensor":
        """Read a TensorProto. Raises ValueError for malformed bytes."""
        items: dict[int, list[Field]] = {}
        for item in read_fields(data):
            items.setdefault(item.number, []).append(item)
        names, kinds, dims, locations = (items.pop(number, []) for number in (_NAME, _TYPE, _DIMS, _LOCATION))
        kind = kinds[-1].integer() if kinds else 0
        outside = bool(locations) and locations[-1].integer() == 1
        external = _external(items.pop(_EXTERNAL, [])) if outside else None
        raw = None if outside or _STRINGS in items else _raw(items, kind)
        rest = [item.encoded for number, found in items.items() if number not in (_RAW, *_TYPED) for item in found]
        sizes = tuple(int(size) for item in dims for size in integer_values(item))
        tensor = cls(names[-1].text() if names else "", kind, sizes, raw, external, b"".join(rest))
        object.__setattr__(tensor, "_source", bytes(data))
        return tensor

    def fields(self) -> list[bytes]:
        """Return the encoded fields of the TensorProto."""
        if self._source is not None:
            return [self._source]
        parts = [integer_field(_DIMS, size) for size in self.dims]
        parts += [integer_field(_TYPE, self.data_type), text_field(_NAME, self.name)]
        if self.external is not None:
            parts += [
                *(pair_field(_EXTERNAL, pair) for pair in _entries(self.external).items()),
                integer_field(_LOCATION, 1),
            ]
        elif self.raw is not None:
            parts.append(bytes_field(_RAW, self.raw))
        return [*parts, self.rest]


def _raw(items: Mapping[int, list[Field]], kind: int) -> bytes:
    """Return a tensor's elements in little-endian order."""
    if found := items.get(_RAW):
        return bytes(found[-1].message())
    pieces = []
    for number in _TYPED:
        for item in items.get(number, []):
            if number in _FIXED:
                pieces.append(fixed_bytes(item, _FIXED[number]))
            else:
                pieces.append(integer_values(item).astype(_STORED.get(kind, _WIDTHS[number])).tobytes())
    return b"".join(pieces)


def _external(items: list[Field]) -> ExternalData:
    """Parse the entries of an external tensor. Raises ValueError for a missing location or invalid numbers."""
    entries = dict(map(read_pair, items))
    location, offset, length = (entries.pop(key, "") for key in ("location", "offset", "length"))
    if not location:
        raise ValueError("a tensor is external, but its file is not named")
    return ExternalData(location, _size(offset) or 0, _size(length), entries)


def _size(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ValueError(f"a tensor's external offset or length is {text[:40]!r}")
    return int(text)


def _entries(external: ExternalData) -> dict[str, str]:
    length = {} if external.length is None else {"length": str(external.length)}
    return {"location": external.location, "offset": str(external.offset), **length, **external.others}
