"""Stored weights: what each is made of and how its bytes are produced, a bounded piece at a time.

A stored weight yields one or more tensors of the weights file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.arrays import FloatArray
from edgedecode.errors import ExportError

from .quantize import Scheme, quantize
from .sources import Matrix

__all__ = ["BlockWeight", "FloatWeight", "Piece", "TensorSpec", "TransposedWeight"]

Stored: TypeAlias = "npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint8]"


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
    """A weight as it is, [rows, columns] or the vector it was, in float32 or float16."""

    name: str
    source: Matrix
    shape: tuple[int, ...]
    bits: int = 32

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.name, f"float{self.bits}", self.shape),)

    def pieces(self) -> Iterator[Piece]:
        for chunk in self.source.chunks():
            values = _as_float(chunk.values, self.name, bits=self.bits)
            yield Piece(self.name, chunk.start * self.source.columns * values.itemsize, values)


@dataclass(frozen=True, slots=True)
class TransposedWeight:
    """A projection's weight as MatMul wants it, [columns, rows], in float32 or float16."""

    name: str
    source: Matrix
    bits: int = 32

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.name, f"float{self.bits}", (self.source.columns, self.source.rows)),)

    def pieces(self) -> Iterator[Piece]:
        for chunk in self.source.column_chunks():
            values = _as_float(chunk.values, self.name, bits=self.bits)
            yield Piece(self.name, chunk.start * self.source.rows * values.itemsize, values)


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """A projection's weight in blocks: `packed` uint8 [rows, blocks, bytes], `scales` float32 [rows, blocks].

    importance: float32 [columns], as `quantize` takes it.
    """

    name: str
    source: Matrix
    scheme: Scheme
    importance: FloatArray | None = None

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
        for chunk in self.source.chunks():
            blocks = quantize(_sound(chunk.values, self.name), self.scheme, importance=self.importance)
            yield Piece(packed.name, chunk.start * (packed.nbytes // self.source.rows), blocks.packed)
            yield Piece(scales.name, chunk.start * (scales.nbytes // self.source.rows), blocks.scales)


def _as_float(values: FloatArray, name: str, *, bits: int) -> npt.NDArray[np.float32] | npt.NDArray[np.float16]:
    """Return sound values in their stored type. Raises ExportError for what is too large for it."""
    if bits == 32:
        return _sound(values, name)
    with np.errstate(over="ignore"):
        half = _sound(values, name).astype(np.float16)
    if not np.isfinite(half).all():
        raise ExportError(f"the weight {name} holds values too large for float16: use --bits 32, 8 or 4")
    return half


def _sound(values: FloatArray, name: str) -> FloatArray:
    """Return the values if all are finite numbers. Raises ExportError."""
    if not np.isfinite(values).all():
        raise ExportError(f"the weight {name} holds NaN or infinity: the checkpoint is damaged, download it again")
    return values
