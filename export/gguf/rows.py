"""Where the rows of a tensor come from: a pack's weights file, or a checkpoint's view; always a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.errors import ExportError
from edgedecode.types import FloatArray

from ..graph.quantize import Blocks, Scheme
from ..graph.stored import BlockWeight, FloatWeight, TransposedWeight
from ..graph.weights import Weights
from .transcoding import kind_of, transcode

if TYPE_CHECKING:
    import torch

__all__ = ["ArrayRows", "BlockRows", "FloatRows", "RowArray", "Rows", "StoredRows"]

RowArray: TypeAlias = "npt.NDArray[np.uint8] | npt.NDArray[np.float16] | npt.NDArray[np.float32]"
AnyWeight: TypeAlias = BlockWeight | FloatWeight | TransposedWeight


class Rows(Protocol):
    """Gives rows `first` up to `end`, [end - first, whatever a row is in its ggml type `kind`]."""

    @property
    def kind(self) -> str: ...
    def read(self, first: int, end: int) -> RowArray: ...


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """A small vector or matrix that is in memory already, kept in float32; a vector has one number a row."""

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
            raise ExportError("a weight holds a number that float16 cannot: export with --bits 32, 8 or 4")
        return stored


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows `first` up to `end` of a stored weight, whose levels and scales begin at these offsets of the file."""

    weight: BlockWeight
    first: int
    end: int
    packed: int
    scales: int


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows that lie as blocks in a pack's weights file, in one stored weight or in several of one scheme."""

    file: Path
    pieces: tuple[_Piece, ...]

    @property
    def scheme(self) -> Scheme:
        return self.pieces[0].weight.scheme

    @property
    def kind(self) -> str:
        return kind_of(self.scheme)

    def read(self, first: int, end: int) -> RowArray:
        found, start = [], 0
        for piece in self.pieces:
            count = piece.end - piece.first
            low, high = max(first - start, 0), min(end - start, count)
            if low < high:
                found.append(self._transcoded(piece, piece.first + low, piece.first + high))
            start += count
        return np.concatenate(found)

    def _transcoded(self, piece: _Piece, first: int, end: int) -> npt.NDArray[np.uint8]:
        _, blocks, width = piece.weight.packed.shape
        count = end - first
        size = count * blocks
        packed = np.fromfile(self.file, np.uint8, count=size * width, offset=piece.packed + first * blocks * width)
        scales = np.fromfile(self.file, np.float32, count=size, offset=piece.scales + first * blocks * 4)
        stored = Blocks(packed.reshape(count, blocks, width), scales.reshape(count, blocks))
        return transcode(stored, piece.weight.scheme)


class StoredRows:
    """Finds how a pack stores a parameter, and gives it in the same way: its very blocks, or floats of as many bits.

    Parameters and stored weights are views of the same checkpoint: they belong together where they share its memory.
    Nothing is quantized again, so what is found are the pack's own bits.
    """

    def __init__(self, weights: Weights, file: Path) -> None:
        self._file = file
        self._offsets = {name: extent.offset for name, extent in weights.extents().items()}
        self._parts = [(part, start, weight) for weight in weights.stored for part, start in _parts_of(weight)]

    def find(self, parameter: torch.Tensor) -> Rows:
        """Return a matrix's rows. Raises ExportError where its parts are stored in different ways."""
        runs: list[_Run] = []
        row = 0
        while row < parameter.shape[0]:
            runs.append(self._run(parameter, row))
            row += runs[-1].end - runs[-1].first
        weights = [run.weight for run in runs]
        blocks = [self._piece(run.weight, run) for run in runs if isinstance(run.weight, BlockWeight)]
        if len(blocks) == len(runs):
            return BlockRows(self._file, _of_one_scheme(blocks))
        bits = {weight.bits for weight in weights if not isinstance(weight, BlockWeight)}
        if blocks or len(bits) > 1:
            raise _mixed("blocks" if blocks else "float16", "floats")
        return FloatRows(parameter, bits.pop())

    def _run(self, parameter: torch.Tensor, row: int) -> _Run:
        """Return the longest run of rows from `row` on that one stored weight holds."""
        width = parameter.stride(0) * parameter.element_size()
        address = parameter.data_ptr() + row * width
        for part, start, weight in self._parts:
            ahead = address - part.data_ptr()
            if part.shape[1] == parameter.shape[1] and 0 <= ahead < part.shape[0] * width:
                first = ahead // width
                count = min(part.shape[0] - first, parameter.shape[0] - row)
                return _Run(weight, start + first, start + first + count)
        raise ExportError(
            "the pack's weights file lacks a matrix of the model: export without gguf among the --formats"
        )

    def _piece(self, weight: BlockWeight, run: _Run) -> _Piece:
        packed, scales = (self._offsets[spec.name] for spec in weight.tensors)
        return _Piece(weight, run.first, run.end, packed, scales)


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows `first` up to `end` of a stored weight."""

    weight: AnyWeight
    first: int
    end: int


def _parts_of(weight: AnyWeight) -> Iterator[tuple[torch.Tensor, int]]:
    start = 0
    for part in weight.source.parts:
        yield part, start
        start += part.shape[0]


def _of_one_scheme(pieces: Sequence[_Piece]) -> tuple[_Piece, ...]:
    names = sorted({piece.weight.scheme.name for piece in pieces})
    if len(names) > 1:
        raise _mixed(*names[:2])
    return tuple(pieces)


def _mixed(one: str, other: str) -> ExportError:
    return ExportError(
        f"GGUF keeps a fused matrix in one type, the recipe stores its parts as {one} and as {other}: "
        f"give them one width, or export without gguf among the --formats"
    )
