"""Reads safetensors files: a header of JSON, and behind it each tensor's values. Nothing is read outside the file.

The format: https://huggingface.co/docs/safetensors. Its own library brings no numpy type for bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import ManifestError

__all__ = ["SafetensorsFile"]

_LENGTH_NBYTES = 8
_MOST_HEADER_NBYTES = 100_000_000
"""What the format's own library allows."""
_TYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Stored(msgspec.Struct):
    """One tensor of the header. data_offsets: where it begins and ends behind the header."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """The tensors of one file, by name; values are read when they are asked for."""

    path: Path
    start: int
    """Where values begin."""
    tensors: Mapping[str, _Stored]

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Read the header. Raises ManifestError: one line that says what is wrong with the file."""
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_NBYTES), "little")
                behind = path.stat().st_size - _LENGTH_NBYTES - length
                if not 0 < length <= _MOST_HEADER_NBYTES or behind < 0:
                    raise ValueError(f"its header would have {length} bytes")
                fields = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            fields.pop("__metadata__", None)
            tensors = {name: msgspec.json.decode(field, type=_Stored) for name, field in fields.items()}
            for name, stored in tensors.items():
                _check(name, stored, behind=behind)
        except OSError as error:
            raise ManifestError(f"{path} cannot be read ({error.strerror}): give it again") from None
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            raise ManifestError(f"{path} is not a usable safetensors file ({error}): download it again") from None
        return cls(path, _LENGTH_NBYTES + length, tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's sizes."""
        return self.tensors[name].shape

    def array(self, name: str) -> FloatArray:
        """Return a tensor as float32. Raises ManifestError where the file ends too early."""
        stored = self.tensors[name]
        first, last = stored.data_offsets
        with self.path.open("rb") as file:
            file.seek(self.start + first)
            data = file.read(last - first)
        if len(data) != last - first:
            raise ManifestError(f"{self.path} ends in the middle of {name}: download it again")
        values = np.frombuffer(data, _TYPES[stored.dtype]).reshape(stored.shape)
        if stored.dtype == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        return np.ascontiguousarray(values, np.float32)


def _check(name: str, stored: _Stored, *, behind: int) -> None:
    """Raise ValueError for a tensor that does not lie in the file, or of a type that is not read here."""
    first, last = stored.data_offsets
    if stored.dtype not in _TYPES:
        raise ValueError(f"{name} is of type {stored.dtype}, not {', '.join(_TYPES)}")
    if not first <= last <= behind or last - first != prod(stored.shape) * _TYPES[stored.dtype].itemsize:
        raise ValueError(f"{name} has {last - first} bytes at {first}, its shape is {list(stored.shape)}")
