"""A part of the vocabulary: the ids that a smaller head of a draft model knows, row by row. Opens no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedecode.errors import InputError, ManifestError
from edgedecode.types import IntArray

__all__ = ["TrimmedVocabulary", "read_token_ids", "write_token_ids"]

_STORED = np.dtype("<i4")


@dataclass(frozen=True, slots=True, eq=False)
class TrimmedVocabulary:
    """Ids in ascending order; row i of a trimmed head is the id `ids[i]`. Raises InputError for anything else."""

    ids: IntArray
    size: int
    """How many ids there are in the whole vocabulary."""
    _inside: npt.NDArray[np.bool_] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ids = self.ids
        if not len(ids) or ids[0] < 0 or ids[-1] >= self.size or (ids[1:] <= ids[:-1]).any():
            raise InputError(f"a trimmed vocabulary's ids must ascend, from 0 to below {self.size}")
        inside = np.zeros(self.size, np.bool_)
        inside[ids] = True
        object.__setattr__(self, "_inside", inside)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and 0 <= token < self.size and bool(self._inside[token])

    def share_of(self, tokens: Sequence[int]) -> float:
        """Return which share of these tokens it knows: its coverage of a text; 0 for an empty one."""
        return float(self._inside[np.asarray(tokens, np.int64)].mean()) if len(tokens) else 0.0


def write_token_ids(path: Path, ids: IntArray) -> None:
    """Write the map of a trimmed head: one little-endian int32 a row."""
    path.write_bytes(ids.astype(_STORED).tobytes())


def read_token_ids(path: Path, *, rows: int, vocabulary_size: int) -> TrimmedVocabulary:
    """Read the map of a head of `rows` rows. Raises ManifestError where it does not fit."""
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
