"""Rows that lie as blocks in a pack's weights file, read in ggml's order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..graph.quantize import Blocks, Scheme
from .transcoding import kind_of, transcode

__all__ = ["BlockPiece", "BlockRows"]


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """Rows that lie one behind the other: how many, and the offsets in the file of their levels and of their scales."""

    rows: int
    packed: int
    scales: int


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows of `columns` weights in the blocks of one scheme, in one piece of the file or in several."""

    file: Path
    scheme: Scheme
    columns: int
    pieces: tuple[BlockPiece, ...]

    @property
    def kind(self) -> str:
        return kind_of(self.scheme)

    def read(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        found, start = [], 0
        for piece in self.pieces:
            low, high = max(first - start, 0), min(end - start, piece.rows)
            if low < high:
                found.append(self._transcoded(piece, low, high))
            start += piece.rows
        return np.concatenate(found)

    def _transcoded(self, piece: BlockPiece, first: int, end: int) -> npt.NDArray[np.uint8]:
        blocks, width = self.columns // self.scheme.block_size, self.scheme.block_size * self.scheme.bits // 8
        count = end - first
        size = count * blocks
        packed = np.fromfile(self.file, np.uint8, count=size * width, offset=piece.packed + first * blocks * width)
        scales = np.fromfile(self.file, np.float32, count=size, offset=piece.scales + first * blocks * 4)
        stored = Blocks(packed.reshape(count, blocks, width), scales.reshape(count, blocks))
        return transcode(stored, self.scheme)
