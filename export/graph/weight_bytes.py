"""Stored weights: converts checkpoint views to the bytes of one or more tensors in the weights file, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError

from .error_feedback import Inputs
from .quantize import Scheme, quantize

if TYPE_CHECKING:
    import torch

_CHUNK_ELEMENTS = 1 << 22
"""Elements converted at a time: 16 MiB of float32."""
Stored: TypeAlias = "npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint8]"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a matrix from `start` on, float32."""

    start: int
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Stacked:
    """Replaces `torch.cat(parts)` in the builder without copying."""

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
    """The transpose of a stack, as the builder passes it."""

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
    """A [rows, columns] weight in one or more views, stacked by rows; a vector is one row."""

    parts: tuple[torch.Tensor, ...]

    @property
    def rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def columns(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def identity(self) -> tuple[tuple[int, ...], ...]:
        """A key that is equal for matrices in the same memory (tied weights)."""
        return tuple((part.data_ptr(), *part.shape) for part in self.parts)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in bounded chunks."""
        start = 0
        for part in self.parts:
            step = max(1, _CHUNK_ELEMENTS // part.shape[1])
            for first in range(0, part.shape[0], step):
                rows = part[first : first + step]
                yield Chunk(start + first, _read_float(rows))
            start += part.shape[0]

    def column_chunks(self) -> Iterator[Chunk]:
        """Yield the transpose as chunks of [columns, rows] with a bounded number of columns."""
        step = max(1, _CHUNK_ELEMENTS // self.rows)
        for first in range(0, self.columns, step):
            pieces = [_read_float(part[:, first : first + step]).T for part in self.parts]
            yield Chunk(first, np.ascontiguousarray(np.concatenate(pieces, axis=1)))


def matrix_of(recorded: Recorded, *, transposed: bool) -> Matrix:
    """Return the matrix for a recorded weight; `transposed`: the record is [columns, rows]."""
    if isinstance(recorded, StackedT):
        assert transposed
        return Matrix(recorded.origin.parts)
    view = recorded.T if transposed else recorded
    return Matrix((view.reshape(-1, view.shape[-1]),))


def _read_float(view: torch.Tensor) -> FloatArray:
    return np.asarray(view.detach().float().numpy(), np.float32)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the weights file: float32, float16 or uint8."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of tensor `name`, `offset` bytes after its start."""

    name: str
    offset: int
    values: Stored


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """An unquantized weight in float32 or float16: [rows, columns], or a vector.

    transposed: stored as [columns, rows], as MatMul expects a projection's weight.
    """

    name: str
    source: Matrix
    shape: tuple[int, ...]
    bits: int = 32
    transposed: bool = False

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.name, f"float{self.bits}", self.shape),)

    def pieces(self) -> Iterator[Piece]:
        width = self.source.rows if self.transposed else self.source.columns
        for chunk in self.source.column_chunks() if self.transposed else self.source.chunks():
            values = _as_float(chunk.values, self.name, bits=self.bits)
            yield Piece(self.name, chunk.start * width * values.itemsize, values)


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """A projection's weight in blocks: `packed` uint8 [rows, blocks, bytes], `scales` float32 [rows, blocks].

    inputs: what is known of its inputs, with which 4-bit weights are rounded; None: to nearest.
    """

    name: str
    source: Matrix
    scheme: Scheme
    inputs: Inputs | None = None

    @property
    def packed(self) -> TensorSpec:
        blocks = self.source.columns // self.scheme.block_size
        width = self.scheme.block_size * self.scheme.bits // 8
        return TensorSpec(f"{self.name}.packed", "uint8", (self.source.rows, blocks, width))

    @property
    def scales(self) -> TensorSpec:
        return TensorSpec(f"{self.name}.scales", "float32", self.packed.shape[:2])

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        return self.packed, self.scales

    def pieces(self) -> Iterator[Piece]:
        packed, scales = self.tensors
        factors = self.inputs.factors() if self.inputs is not None and self.scheme.bits == 4 else ()
        for chunk in self.source.chunks():
            blocks = quantize(finite(chunk.values, self.name), self.scheme, factors=factors)
            yield Piece(packed.name, chunk.start * (packed.nbytes // self.source.rows), blocks.packed)
            yield Piece(scales.name, chunk.start * (scales.nbytes // self.source.rows), blocks.scales)


def _as_float(values: FloatArray, name: str, *, bits: int) -> npt.NDArray[np.float32] | npt.NDArray[np.float16]:
    """Convert finite values to their stored type. Raises ExportError if a value is too large for it."""
    if bits == 32:
        return finite(values, name)
    with np.errstate(over="ignore"):
        half = finite(values, name).astype(np.float16)
    if not np.isfinite(half).all():
        raise ExportError(f"the weight {name} holds values too large for float16: use --bits 32, 8 or 4")
    return half


def finite(values: FloatArray, name: str) -> FloatArray:
    """Return the values. Raises ExportError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        raise ExportError(f"the weight {name} holds NaN or infinity: the checkpoint is damaged, download it again")
    return values
