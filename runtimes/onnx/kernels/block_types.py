"""Turns the tensors of GGUF files into matrices for our tiles, by ggml's block type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .library import Matrix
from .products import NotServed

__all__ = ["matrix_of"]

_Bytes = npt.NDArray[np.uint8]
_SCALE_NBYTES = 2
_Q4_0, _Q8_0 = 2, 8
_BLOCK = 32


def matrix_of(kind: int, data: _Bytes) -> Matrix:
    """Return the matrix of a tensor. data: [columns, bytes of a row]. Raises NotServed for a type without tiles."""
    if kind not in (_Q4_0, _Q8_0):
        raise NotServed(f"its block type {kind} has no tiles")
    bits = 4 if kind == _Q4_0 else 8
    blocks = data.reshape(len(data), -1, _SCALE_NBYTES + _BLOCK * bits // 8)
    scales = np.ascontiguousarray(blocks[..., :_SCALE_NBYTES]).view("<f2")[..., 0].astype(np.float32)
    return Matrix(_pairs(blocks[..., 2:]) if bits == 4 else blocks[..., 2:] ^ np.uint8(0x80), scales, bits, _BLOCK)


def _pairs(packed: _Bytes) -> _Bytes:
    """Return 4-bit values with neighbours in one byte, from ggml's order: byte i holds the values i and i + 16."""
    values = np.concatenate((packed & 15, packed >> 4), axis=-1)
    pairs: _Bytes = np.bitwise_or(values[..., ::2], values[..., 1::2] << 4, dtype=np.uint8)
    return pairs
