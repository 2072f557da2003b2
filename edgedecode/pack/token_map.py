"""Reads and writes the map of a trimmed draft: the token id of each row of its logits."""

from pathlib import Path

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import InputError, ManifestError

_STORED = np.dtype("<i4")


def write_token_ids(path: Path, ids: IntArray) -> None:
    """Write the map: one little-endian int32 per row."""
    path.write_bytes(ids.astype(_STORED).tobytes())


def read_token_ids(path: Path, *, rows: int, vocabulary_size: int) -> TrimmedVocabulary:
    """Read the map of `rows` rows. Raises ManifestError if it does not fit."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ManifestError(
            f"the map of the trimmed draft {path} cannot be read ({error.strerror}): run `edgedecode trim` again"
        ) from None
    if len(content) != rows * _STORED.itemsize:
        raise ManifestError(
            f"{path} maps {len(content) / _STORED.itemsize:g} rows, the trimmed draft has {rows}: "
            f"run `edgedecode trim` again"
        )
    try:
        return TrimmedVocabulary(np.frombuffer(content, _STORED).astype(np.int64), vocabulary_size)
    except InputError as error:
        raise ManifestError(f"{path} does not fit the draft ({error}): run `edgedecode trim` again") from None
