"""Turns the tensors of GGUF files into matrices for our tiles, by ggml's block type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray

from .library import Matrix
from .products import NotServed

__all__ = ["BLOCK", "matrix_of", "minima_of"]

_Bytes = npt.NDArray[np.uint8]
_SCALE_NBYTES = 2
_Q4_0, _Q4_1, _Q8_0 = 2, 3, 8
BLOCK = 32
"""Values that share a scale and a minimum."""
_MIDDLE = 8
"""What tiles of 4 bits subtract from each value."""


def matrix_of(kind: int, data: _Bytes) -> Matrix:
    """Return the matrix of a tensor. data: [columns, bytes of a row]. Raises NotServed for a type without tiles."""
    if kind not in (_Q4_0, _Q4_1, _Q8_0):
        raise NotServed(f"its block type {kind} has no tiles")
    bits = 8 if kind == _Q8_0 else 4
    floats, values = _split(data, 2 if kind == _Q4_1 else 1, bits=bits)
    packed = _pairs(values) if bits == 4 else values ^ np.uint8(0x80)
    return Matrix(packed, np.ascontiguousarray(floats[..., 0]), bits, BLOCK)


def minima_of(kind: int, data: _Bytes) -> FloatArray | None:
    """Return what each block adds to the values of its matrix, [columns, blocks]; None for types that add nothing."""
    if kind != _Q4_1:
        return None
    floats, _ = _split(data, 2, bits=4)
    return floats[..., 1] + _MIDDLE * floats[..., 0]


def _split(data: _Bytes, floats: int, *, bits: int) -> tuple[FloatArray, _Bytes]:
    """Return the floats that each block begins with, and its packed values."""
    start = floats * _SCALE_NBYTES
    blocks = data.reshape(len(data), -1, start + BLOCK * bits // 8)
    return np.ascontiguousarray(blocks[..., :start]).view("<f2").astype(np.float32), blocks[..., start:]


def _pairs(packed: _Bytes) -> _Bytes:
    """Return 4-bit values with neighbours in one byte, from ggml's order: byte i holds the values i and i + 16."""
    values = np.concatenate((packed & 15, packed >> 4), axis=-1)
    pairs: _Bytes = np.bitwise_or(values[..., ::2], values[..., 1::2] << 4, dtype=np.uint8)
    return pairs
