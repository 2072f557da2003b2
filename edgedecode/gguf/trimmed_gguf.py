"""Writes a GGUF model with a trimmed vocabulary, which llama.cpp loads as a separate model.

Its embedding and output have the rows of the kept ids, bit for bit; every other tensor is copied. The model takes rows
of the full embedding as input. The file is streamed, a few MB at a time.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.cache import aside
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import CapabilityError, ExportError, ManifestError

from .contents import Contents, Tensor, read_contents
from .encoding import WrittenTensor, encoded_field, write_encoded
from .fields import Truncated
from .gguf_names import CLASSES
from .header import EMBEDDING, OUTPUT, header_of
from .trimmed_fields import trimmed_fields

TRIM_KEY = "edgedecode.trim.sha256"
"""The field with the digest of the map from rows to ids."""
FED = frozenset(CLASSES.values())
"""Architectures for which llama.cpp computes the same from embedding rows as from ids, except for a scale factor.
Others use the id for more (per-layer embeddings), or end the process."""
_ROWS_OF_IDS = (EMBEDDING, OUTPUT, "output.bias")
_PIECE_NBYTES = 2**20


def map_sha256(ids: IntArray) -> str:
    """Return the digest of a token map as written by `write_token_ids`."""
    return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()


def trim_gguf(source: Path, out: Path, vocabulary: TrimmedVocabulary) -> None:
    """Write the model at `source` with only the ids of `vocabulary` to `out`, which is replaced atomically.

    Drafting works with any ids. Tokenizing with the file does not: llama.cpp's tokenizer ends the process if byte
    tokens of the vocabulary are missing.
    Raises ManifestError for a file that is damaged or does not fit, CapabilityError for an architecture that cannot
    take rows as input, ExportError if `out` cannot be written.
    """
    try:
        with aside(out) as fresh, fresh.open("wb") as file:
            write_trimmed(file, source, vocabulary)
    except OSError as error:
        raise ExportError(f"{out} cannot be written ({error.strerror or error}): make room, or give another") from None


def write_trimmed(file: BinaryIO, source: Path, vocabulary: TrimmedVocabulary) -> None:
    """Write the trimmed model to an open file. Raises ManifestError, CapabilityError and OSError."""
    contents = read_contents(source)
    _check(contents, source, vocabulary)
    with source.open("rb") as full:
        fields = [*_fields(full, vocabulary), encoded_field(TRIM_KEY, map_sha256(vocabulary.ids))]
        tensors = [_tensor(tensor, full, contents, vocabulary) for tensor in contents.tensors.values()]
        write_encoded(file, fields, tensors, alignment=contents.alignment)


def _check(contents: Contents, source: Path, vocabulary: TrimmedVocabulary) -> None:
    """Refuse incomplete models, files with too few rows, and architectures that cannot take rows as input."""
    header = header_of(contents, source)
    if TRIM_KEY in contents.fields:
        raise ManifestError(f"{source} is a trimmed draft already: give the full one")
    if header.architecture not in FED:
        raise CapabilityError(
            f"{source} has the architecture {header.architecture!r}, whose embedding llama.cpp looks up by itself: "
            f"a draft of it cannot be trimmed there, use --runtime onnx"
        )
    for name in _ROWS_OF_IDS:
        tensor = contents.tensors.get(name)
        if tensor is not None and tensor.shape[-1] != header.rows:
            raise ManifestError(
                f"{source} has {tensor.shape[-1]} rows in {name} and {header.rows} in its embedding: export it again"
            )
    if vocabulary.size > header.rows:
        raise ManifestError(
            f"{source} has {header.rows} rows, the map has {vocabulary.size} ids: the map is for another draft"
        )


def _fields(full: BinaryIO, vocabulary: TrimmedVocabulary) -> list[bytes]:
    try:
        with mmap.mmap(full.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return trimmed_fields(content, vocabulary)
    except Truncated as error:
        raise ManifestError(f"{full.name} is damaged ({error}): copy, download or export it again") from None


def _tensor(tensor: Tensor, full: BinaryIO, contents: Contents, vocabulary: TrimmedVocabulary) -> WrittenTensor:
    start = contents.start + tensor.offset
    ids, row_nbytes = vocabulary.ids, tensor.nbytes // tensor.shape[-1]

    def copied() -> Iterator[bytes]:
        return _copied(full, start=start, nbytes=tensor.nbytes)

    def picked() -> Iterator[memoryview]:
        return _picked(full, ids, start=start, row_nbytes=row_nbytes)

    if tensor.name not in _ROWS_OF_IDS:
        return WrittenTensor(tensor.name, tensor.shape, tensor.type, copied)
    return WrittenTensor(tensor.name, (*tensor.shape[:-1], len(ids)), tensor.type, picked)


def _copied(full: BinaryIO, *, start: int, nbytes: int) -> Iterator[bytes]:
    full.seek(start)
    while nbytes:
        piece = _read(full, min(nbytes, _PIECE_NBYTES))
        nbytes -= len(piece)
        yield piece


def _picked(full: BinaryIO, ids: IntArray, *, start: int, row_nbytes: int) -> Iterator[memoryview]:
    """Yield the bytes of these rows. Reads contiguous pieces, including the rows between them."""
    step = max(1, _PIECE_NBYTES // row_nbytes)
    first = 0
    while first < len(ids):
        base = int(ids[first])
        end = int(np.searchsorted(ids, base + step))
        count = int(ids[end - 1]) - base + 1
        full.seek(start + base * row_nbytes)
        piece = np.frombuffer(_read(full, count * row_nbytes), np.uint8).reshape(count, row_nbytes)
        yield piece[ids[first:end] - base].data
        first = end


def _read(full: BinaryIO, nbytes: int) -> bytes:
    piece = full.read(nbytes)
    if len(piece) < nbytes:
        raise ManifestError(f"{full.name} became shorter while it was read: copy, download or export it again")
    return piece
