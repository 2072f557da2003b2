"""Blocks of a pack as llama.cpp's: Q4_0 and Q8_0 hold the same levels and scales in another order. Reads no file."""

from __future__ import annotations

import numpy as np

from edgedecode.errors import ExportError, ManifestError

from ..graph.quantize import Blocks, ByteArray, Scheme

__all__ = ["BLOCK", "kind_of", "transcode"]

BLOCK = 32
"""Columns that share a scale, in Q4_0 and in Q8_0."""
_SIGN = np.uint8(0x80)


def kind_of(scheme: Scheme) -> str:
    """Return ggml's name for a scheme. Raises ExportError for blocks it has no type for."""
    if not scheme.quantized:
        return f"F{scheme.bits}"
    if scheme.block_size != BLOCK or scheme.bits not in (4, 8):
        raise ExportError(
            f"GGUF has no type for {scheme.name}: its Q4_0 and Q8_0 share a scale among {BLOCK} weights, "
            f"so export with --block-size {BLOCK}, or without gguf among the --formats"
        )
    return f"Q{scheme.bits}_0"


def transcode(blocks: Blocks, scheme: Scheme) -> ByteArray:
    """Return the rows' bytes in ggml's order, uint8 [rows, bytes]: no level and no scale changes.

    A block is its float16 scale, then 16 bytes of levels (column i low, column i + 16 high), or 32 signed bytes.
    Raises ManifestError for scales that are no float16 numbers.
    """
    rows, count = blocks.scales.shape
    kind_of(scheme)
    with np.errstate(over="ignore", invalid="ignore"):
        halves = blocks.scales.astype("<f2")
    if not np.array_equal(halves.astype(np.float32), blocks.scales):
        raise ManifestError(
            "the weights are damaged (they hold scales that are not float16 numbers, as GGUF keeps them): export the "
            "pack again"
        )
    scales = halves.view(np.uint8).reshape(rows, count, 2)
    levels = _nibbles(blocks.packed) if scheme.bits == 4 else blocks.packed ^ _SIGN
    return np.concatenate((scales, levels), axis=-1).reshape(rows, -1)


def _nibbles(packed: ByteArray) -> ByteArray:
    """Move from neighbours in a byte to columns sixteen apart in a byte."""
    columns = np.stack((packed & np.uint8(15), packed >> np.uint8(4)), axis=-1).reshape(*packed.shape[:2], BLOCK)
    return np.asarray(columns[..., : BLOCK // 2] | (columns[..., BLOCK // 2 :] << np.uint8(4)), np.uint8)
