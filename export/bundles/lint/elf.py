"""Reads what matters of a native library: its processor, and how its segments are aligned."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

AARCH64 = 183
_LOAD = 1


class Library(NamedTuple):
    """machine: ELF's number of the processor. alignment: the smallest of the loaded segments, in bytes."""

    machine: int
    alignment: int


def read_library(path: Path) -> Library:
    """Read a 64-bit little-endian ELF file's headers. Raises ValueError for another file."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it is not a 64-bit ELF file")
        (machine,) = struct.unpack_from("<H", head, 18)
        (offset,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        table = file.read(size * count)
    if size < 56 or len(table) < size * count:
        raise ValueError("its program headers are cut off")
    kinds = [struct.unpack_from("<I", table, size * i)[0] for i in range(count)]
    alignments = [struct.unpack_from("<Q", table, size * i + 48)[0] for i in range(count) if kinds[i] == _LOAD]
    return Library(machine, min(alignments, default=0))
