"""llama.cpp's importance files: how much the squared error of each column of a matrix counts.

A column's importance is the mean square of its input on a text. Layout: tools/imatrix/imatrix.cpp of llama.cpp, whose
`llama-imatrix` writes sums and counts as a GGUF file; its older `.dat` files are read too.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.cache import aside
from edgedecode.errors import InputError, cause

from .contents import MAGIC, read_contents
from .encoding import F32, WrittenTensor, encoded_field, write_encoded
from .fields import ARRAY

CHUNK = 512
"""Tokens of a chunk, in which llama.cpp counts a text, unless told otherwise."""
_SUMS, _COUNTS, _TEXTS = ".in_sum2", ".counts", "imatrix.datasets"

Sums: TypeAlias = Mapping[str, tuple[FloatArray, float]]
"""By tensor name: the sum of each column's squares, float32 [columns], and the number of tokens."""


def check_file(path: Path, *, option: str) -> None:
    """Raise InputError if a file cannot be written there."""
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{path} cannot be written: give another {option}")


def write_sums(path: Path, sums: Sums, *, texts: Sequence[str], chunk: int = CHUNK) -> None:
    """Write sums on the texts of these names as llama-imatrix does; the file is complete or does not appear.

    chunk: tokens of a chunk, as which the tokens are counted. Raises InputError if it cannot be written.
    """
    tokens = max(int(count) for _, count in sums.values())
    fields = [
        encoded_field("general.type", "imatrix"),
        encoded_field(_TEXTS, list(texts), kind=ARRAY),
        encoded_field("imatrix.chunk_count", -(-tokens // chunk)),
        encoded_field("imatrix.chunk_size", chunk),
    ]
    tensors = [
        tensor
        for name, (values, count) in sorted(sums.items())
        for tensor in (
            WrittenTensor(name + _SUMS, (len(values), 1), F32, values.astype("<f4").tobytes()),
            WrittenTensor(name + _COUNTS, (1, 1), F32, struct.pack("<f", count)),
        )
    ]
    try:
        with aside(path) as fresh, fresh.open("wb") as file:
            write_encoded(file, fields, tensors)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def read_sums(path: Path) -> tuple[Sums, Sequence[str]]:
    """Return a file's sums, and the names of the texts that they are of; an old file's are not read.

    Raises InputError if it is of another kind or damaged, ManifestError for a damaged GGUF file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the importance file {path} cannot be read: {cause(error)}") from None
    found, texts = _read_gguf(path, content) if content[:4] == MAGIC else (_read_dat(path, content), ())
    for name, (sums, count) in found.items():
        if not (np.isfinite(count) and count > 0):
            raise InputError(f"{path} has no importance for {name}: it counts {count:g} tokens")
        if not np.isfinite(sums).all() or (sums < 0).any() or not sums.any():
            raise InputError(f"{path} is damaged: the sums for {name} are negative, not finite or all zero")
    return found, texts


def _wrong(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not an importance file: {why}; give one that llama-imatrix wrote")


def _read_gguf(path: Path, content: bytes) -> tuple[Sums, Sequence[str]]:
    contents = read_contents(path, arrays=True)
    if (kind := contents.fields.get("general.type")) != "imatrix":
        raise _wrong(path, f"its general.type is {str(kind)[:40]!r}")
    arrays: dict[str, FloatArray] = {}
    for name, tensor in contents.tensors.items():
        if name.endswith((_SUMS, _COUNTS)):
            if tensor.type != F32:
                raise _wrong(path, f"its {name} is not float32")
            arrays[name] = np.frombuffer(content, "<f4", tensor.nbytes // 4, contents.start + tensor.offset)
    names = [name.removesuffix(_SUMS) for name in arrays if name.endswith(_SUMS)]
    if lost := [name for name in names if name + _COUNTS not in arrays]:
        raise _wrong(path, f"it has no {lost[0]}{_COUNTS}")
    if not names:
        raise _wrong(path, "it has no sums")
    texts = [str(text) for text in contents.arrays.get(_TEXTS, ())]
    return {name: (arrays[name + _SUMS], float(arrays[name + _COUNTS].min())) for name in names}, texts


def _read_dat(path: Path, content: bytes) -> Sums:
    """Read entries: a name, a count of chunks, and float32 values; name and values follow their length."""
    found: dict[str, tuple[FloatArray, float]] = {}
    try:
        (entries,), at = struct.unpack_from("<I", content), 4
        for _ in range(entries):
            (length,) = struct.unpack_from("<I", content, at)
            count, columns = struct.unpack_from("<iI", content, at + 4 + length)
            name = content[at + 4 : at + 4 + length].decode()
            at += 12 + length
            found[name] = np.frombuffer(content, "<f4", columns, at) * np.float32(CHUNK), count * CHUNK
            at += 4 * columns
    except (struct.error, ValueError):
        raise _wrong(path, "it is of another format, or truncated") from None
    if not found:
        raise _wrong(path, "it has no entries")
    return found
