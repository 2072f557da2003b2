"""Streams a tensor's rows, from a pack's weights file or from a checkpoint's view.

A pack's blocks are transcoded without loss: Q4_0 and Q8_0 store the same levels and scales in a different order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError, ManifestError

from ..graph.quantize import Blocks, ByteArray, Scheme, dequantize
from ..graph.weight_bytes import BlockWeight, FloatWeight
from ..graph.weights_file import Weights

if TYPE_CHECKING:
    import torch

RowArray: TypeAlias = "npt.NDArray[np.uint8] | npt.NDArray[np.float16] | npt.NDArray[np.float32]"
AnyWeight: TypeAlias = BlockWeight | FloatWeight
BLOCK = 32
"""Columns per scale, in Q4_0 and Q8_0."""
_SIGN = np.uint8(0x80)


class Rows(Protocol):
    """A source of rows in the ggml type `kind`. `read` returns rows `first` up to `end`, [end - first, ...]."""

    @property
    def kind(self) -> str: ...
    def read(self, first: int, end: int) -> RowArray: ...


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """A small float32 vector or matrix in memory; a vector has one element per row."""

    values: FloatArray
    kind: str = "F32"

    def read(self, first: int, end: int) -> RowArray:
        return self.values[first:end].reshape(end - first, -1)


@dataclass(frozen=True, slots=True)
class FloatRows:
    """A checkpoint's matrix, [rows, columns], stored in 16 or 32 bits."""

    view: torch.Tensor
    bits: int

    @property
    def kind(self) -> str:
        return f"F{self.bits}"

    def read(self, first: int, end: int) -> RowArray:
        values = np.asarray(self.view[first:end].detach().float().numpy(), np.float32)
        with np.errstate(over="ignore"):
            stored = values.astype(np.float16) if self.bits == 16 else values
        if not np.isfinite(stored).all():
            raise ExportError("a weight exceeds the range of float16: export with --bits 32, 8 or 4")
        return stored


class StoredRows:
    """Finds a parameter's rows as the pack stores them: the same blocks, or floats of the same width.

    Parameters and stored weights are views of the same checkpoint and are matched by their memory addresses.
    Nothing is quantized again.
    """

    def __init__(self, weights: Weights, file: Path) -> None:
        self._file = file
        self._offsets = {name: extent.offset for name, extent in weights.extents().items()}
        self._parts = [(part, start, weight) for weight in weights.stored for part, start in _parts_of(weight)]

    def find(self, parameter: torch.Tensor) -> Rows:
        """Return a matrix's rows. Raises ExportError if its parts are stored in different formats."""
        pieces: list[BlockPiece] = []
        stored, row = set[Scheme](), 0
        while row < parameter.shape[0]:
            weight, first, count = self._run(parameter, row)
            row += count
            if isinstance(weight, BlockWeight):
                pieces.append(self._piece(weight, first, count))
            stored.add(weight.scheme if isinstance(weight, BlockWeight) else Scheme(weight.bits))
        if len(stored) > 1:
            one, other, *_ = sorted(scheme.name for scheme in stored)
            raise ExportError(
                f"GGUF stores a fused matrix in one type, the recipe stores its parts as {one} and as {other}: "
                f"give them the same width, or export without gguf among the --formats"
            )
        scheme = stored.pop()
        if scheme.quantized:
            return BlockRows(self._file, scheme, int(parameter.shape[1]), tuple(pieces))
        return FloatRows(parameter, scheme.bits)

    def _run(self, parameter: torch.Tensor, row: int) -> tuple[AnyWeight, int, int]:
        """Return the stored weight with the longest run of rows from `row` on, its first row there, and their number.

        Raises ExportError if there is none.
        """
        width = parameter.stride(0) * parameter.element_size()
        address = parameter.data_ptr() + row * width
        for part, start, weight in self._parts:
            ahead = address - part.data_ptr()
            if part.shape[1] == parameter.shape[1] and 0 <= ahead < part.shape[0] * width:
                first = ahead // width
                count = min(part.shape[0] - first, parameter.shape[0] - row)
                return weight, start + first, count
        raise ExportError(
            "the pack's weights file lacks a matrix of the model: export without gguf among the --formats"
        )

    def _piece(self, weight: BlockWeight, first: int, count: int) -> BlockPiece:
        packed, scales = (self._offsets[spec.name] + first * (spec.nbytes // spec.shape[0]) for spec in weight.tensors)
        return BlockPiece(count, packed, scales)


def _parts_of(weight: AnyWeight) -> Iterator[tuple[torch.Tensor, int]]:
    start = 0
    for part in weight.source.parts:
        yield part, start
        start += part.shape[0]


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """Contiguous rows: their number, and the file offsets of their levels and their scales."""

    rows: int
    packed: int
    scales: int


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows of `columns` weights in blocks of one scheme, in one or several pieces of the file."""

    file: Path
    scheme: Scheme
    columns: int
    pieces: tuple[BlockPiece, ...]

    @property
    def kind(self) -> str:
        return kind_of(self.scheme)

    def read(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        return np.concatenate([transcode(blocks, self.scheme) for blocks in self._blocks(first, end)])

    def floats(self, first: int, end: int) -> FloatArray:
        """Return the values of rows, float32 [end - first, columns]."""
        return np.concatenate([dequantize(blocks, self.scheme) for blocks in self._blocks(first, end)])

    def _blocks(self, first: int, end: int) -> Iterator[Blocks]:
        blocks, width = self.columns // self.scheme.block_size, self.scheme.block_size * self.scheme.bits // 8
        start = 0
        for piece in self.pieces:
            low, high = max(first - start, 0), min(end - start, piece.rows)
            if low < high:
                at, size = low * blocks, (high - low) * blocks
                packed = np.fromfile(self.file, np.uint8, count=size * width, offset=piece.packed + at * width)
                scales = np.fromfile(self.file, np.float32, count=size, offset=piece.scales + at * 4)
                yield Blocks(packed.reshape(-1, blocks, width), scales.reshape(-1, blocks))
            start += piece.rows


def kind_of(scheme: Scheme) -> str:
    """Return ggml's type for a scheme. Raises ExportError if it has none."""
    if not scheme.quantized:
        return f"F{scheme.bits}"
    if scheme.block_size != BLOCK or scheme.bits not in (4, 8):
        raise ExportError(
            f"GGUF has no type for {scheme.name}: its Q4_0 and Q8_0 share a scale among {BLOCK} weights, "
            f"so export with --block-size {BLOCK}, or without gguf among the --formats"
        )
    return f"Q{scheme.bits}_0"


def transcode(blocks: Blocks, scheme: Scheme) -> ByteArray:
    """Return the rows' bytes in ggml's order, uint8 [rows, bytes], with unchanged levels and scales.

    A ggml block is a float16 scale, then 16 bytes of levels (column i low, column i + 16 high) or 32 signed bytes.
    Raises ManifestError if a scale is not exactly a float16 number.
    """
    rows, count = blocks.scales.shape
    kind_of(scheme)
    with np.errstate(over="ignore", invalid="ignore"):
        halves = blocks.scales.astype("<f2")
    if not np.array_equal(halves.astype(np.float32), blocks.scales):
        raise ManifestError(
            "the weights are damaged (they have scales that are not float16 numbers, which GGUF requires): export the "
            "pack again"
        )
    scales = halves.view(np.uint8).reshape(rows, count, 2)
    levels = _nibbles(blocks.packed) if scheme.bits == 4 else blocks.packed ^ _SIGN
    return np.concatenate((scales, levels), axis=-1).reshape(rows, -1)


def _nibbles(packed: ByteArray) -> ByteArray:
    """Repack bytes of two adjacent columns as bytes of two columns sixteen apart."""
    columns = np.stack((packed & np.uint8(15), packed >> np.uint8(4)), axis=-1).reshape(*packed.shape[:2], BLOCK)
    return np.asarray(columns[..., : BLOCK // 2] | (columns[..., BLOCK // 2 :] << np.uint8(4)), np.uint8)
