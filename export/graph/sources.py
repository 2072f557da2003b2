"""Where each weight of a graph comes from: rows of checkpoint views, read in chunks as float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from edgedecode.decoding.arrays import FloatArray

if TYPE_CHECKING:
    import torch

__all__ = ["Chunk", "Matrix", "Stacked", "matrix_of"]

_CHUNK_ELEMENTS = 1 << 22
"""16 MiB of float32 at a time."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `start` onwards of a matrix, float32."""

    start: int
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Stacked:
    """What stands for `torch.cat(parts)` in the builder without copying anything."""

    parts: tuple[torch.Tensor, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def T(self) -> StackedT:  # noqa: N802  (torch's name for it)
        return StackedT(self)


@dataclass(frozen=True, slots=True)
class StackedT:
    """The transpose of a stack, as the builder hands it over."""

    origin: Stacked

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.origin.shape
        return columns, rows

    @property
    def dtype(self) -> torch.dtype:
        return self.origin.dtype


Recorded: TypeAlias = "torch.Tensor | StackedT"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A [rows, columns] weight lying in one or several views, stacked by rows; a vector is one row."""

    parts: tuple[torch.Tensor, ...]

    @property
    def rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def columns(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def identity(self) -> tuple[tuple[int, ...], ...]:
        """Equal for two matrices that lie in the same memory: tied weights."""
        return tuple((part.data_ptr(), *part.shape) for part in self.parts)

    def chunks(self) -> Iterator[Chunk]:
        """Read all rows, a bounded number at a time."""
        start = 0
        for part in self.parts:
            step = max(1, _CHUNK_ELEMENTS // part.shape[1])
            for first in range(0, part.shape[0], step):
                rows = part[first : first + step]
                yield Chunk(start + first, _as_float(rows))
            start += part.shape[0]

    def column_chunks(self) -> Iterator[Chunk]:
        """Read the transpose: chunks of [columns, rows], a bounded number of columns at a time."""
        step = max(1, _CHUNK_ELEMENTS // self.rows)
        for first in range(0, self.columns, step):
            pieces = [_as_float(part[:, first : first + step]).T for part in self.parts]
            yield Chunk(first, np.ascontiguousarray(np.concatenate(pieces, axis=1)))


def matrix_of(recorded: Recorded, *, transposed: bool) -> Matrix:
    """Make a matrix of what the builder recorded; `transposed` says that the record is [columns, rows]."""
    if isinstance(recorded, StackedT):
        assert transposed
        return Matrix(recorded.origin.parts)
    view = recorded.T if transposed else recorded
    return Matrix((view.reshape(-1, view.shape[-1]),))


def _as_float(view: torch.Tensor) -> FloatArray:
    return np.asarray(view.detach().float().numpy(), np.float32)
