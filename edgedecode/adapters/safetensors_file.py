"""Reads safetensors files: a JSON header followed by the values of each tensor.

The format: https://huggingface.co/docs/safetensors. Its own library has no numpy type for bfloat16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from edgedecode.arrays import FloatArray, bfloat16_floats
from edgedecode.errors import ManifestError, stand_in
from edgedecode.typed_json import described

_LENGTH_NBYTES = 8
_MOST_HEADER_NBYTES = 100_000_000
"""The limit of the format's own library."""
_FLOATS = ("F32", "F16", "BF16")
_TYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "BOOL": np.dtype("?"),
}
"""Integers are those of vocabulary maps."""
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Stored(msgspec.Struct):
    """One tensor of the header. data_offsets: its start and end, relative to the end of the header."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


class _OtherType(ValueError):
    """A tensor is of a type that is not read, as those of 8-bit floats, which have scales beside them."""


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """The tensors of one file, by name; values are read on demand."""

    path: Path
    start: int
    """Offset of the first value."""
    tensors: Mapping[str, _Stored]

    @classmethod
    def open(cls, path: Path) -> "SafetensorsFile":
        """Read the header. Raises ManifestError, with one line about the fault, for a file that cannot be used."""
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_NBYTES), "little")
                values_nbytes = path.stat().st_size - _LENGTH_NBYTES - length
                if not 0 < length <= _MOST_HEADER_NBYTES or values_nbytes < 0:
                    raise ValueError(f"its header would have {length} bytes")
                fields = msgspec.json.decode(file.read(length), type=described(dict[str, msgspec.Raw]))
            fields.pop("__metadata__", None)
            tensors = {name: msgspec.json.decode(field, type=described(_Stored)) for name, field in fields.items()}
            for name, stored in tensors.items():
                _check(name, stored, values_nbytes=values_nbytes)
        except OSError as error:
            raise ManifestError(f"{path} cannot be read ({error.strerror}): check the file") from None
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            with path.open("rb") as file:
                other = stand_in(file.read(64))
            advice = "save it in one of these" if isinstance(error, _OtherType) else "download it again"
            what = other or f"is not a usable safetensors file ({error}): {advice}"
            raise ManifestError(f"{path} {what}") from None
        return cls(path, _LENGTH_NBYTES + length, tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's sizes."""
        return self.tensors[name].shape

    def array(self, name: str, *, rows: int | None = None) -> FloatArray:
        """Return a tensor as float32, or its first rows. Raises ManifestError if the file ends too early."""
        stored = self.tensors[name]
        shape, (first, last) = stored.shape, stored.data_offsets
        if rows is not None:
            shape = (min(rows, shape[0]), *shape[1:])
            last = first + prod(shape) * _TYPES[stored.dtype].itemsize
        try:
            with self.path.open("rb") as file:
                file.seek(self.start + first)
                data = file.read(last - first)
        except OSError as error:
            raise ManifestError(f"{self.path} cannot be read ({error.strerror}): save the adapter again") from None
        if len(data) != last - first:
            raise ManifestError(f"{self.path} ends in the middle of {name}: download it again")
        values = np.frombuffer(data, _TYPES[stored.dtype]).reshape(shape)
        if stored.dtype == "BF16":
            values = bfloat16_floats(values)
        return np.ascontiguousarray(values, np.float32)


def _check(name: str, stored: _Stored, *, values_nbytes: int) -> None:
    """Raise ValueError for a tensor that exceeds the file or has an unsupported type."""
    first, last = stored.data_offsets
    if stored.dtype not in _TYPES:
        raise _OtherType(f"{name[:60]} is of type {stored.dtype[:20]}, not {', '.join(_FLOATS)}")
    if not first <= last <= values_nbytes or last - first != prod(stored.shape) * _TYPES[stored.dtype].itemsize:
        raise ValueError(f"{name} has {last - first} bytes at {first}, its shape is {list(stored.shape)}")
