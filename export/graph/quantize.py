"""Symmetric block quantization in numpy: blocks along the inner dimension, scales exactly representable in float16.

4 bits follow Q4_0's convention and 8 bits Q8_0's, so a GGUF file can hold the same blocks. The scales of 4-bit blocks
can be searched to minimize the error weighted by the columns' importance. The search follows `make_qx_quants`
(ggml-quants.c), which llama.cpp uses with an importance matrix: try several levels for the largest value, fit the scale
to the resulting integers, keep the best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray

__all__ = ["Blocks", "ByteArray", "Scheme", "dequantize", "quantize"]

ByteArray: TypeAlias = npt.NDArray[np.uint8]
_LARGEST_SCALE = float(np.finfo(np.float16).max)
_LARGEST_LEVELS = (-7.0, -7.3, -7.6, -7.9, -8.2, -8.5, -8.8, -9.4, 7.0, 7.4, 7.8, 8.4)
"""Levels tried for a block's largest magnitude. Beyond -8 and 7 it is clipped, which gives the others finer steps."""
_MIN_IMPORTANCE = 1e-6
"""Minimum importance of a column, as a share of the mean: columns the text never activates still count a little."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a weight is stored: 4 or 8 bits in blocks of `block_size`, or 16 or 32 bits as floats (block size 0)."""

    bits: int
    block_size: int = 0

    @property
    def quantized(self) -> bool:
        return self.bits < 16

    @property
    def name(self) -> str:
        return f"int{self.bits}, block {self.block_size}" if self.quantized else f"float{self.bits}"

    def nbytes(self, rows: int, columns: int) -> int:
        """Return the stored size of a [rows, columns] weight, including float32 scales."""
        scales = 4 * rows * (columns // self.block_size) if self.quantized else 0
        return rows * columns * self.bits // 8 + scales


@dataclass(frozen=True, slots=True)
class Blocks:
    """A quantized [rows, columns] weight.

    packed: uint8 [rows, blocks, bytes], at 4 bits two values per byte with the even column in the low half; the zero
    point is 8 or 128. scales: float32 [rows, blocks], exactly representable in float16; negative ones occur at 4 bits.
    """

    packed: ByteArray
    scales: FloatArray


def quantize(weights: FloatArray, scheme: Scheme, *, importance: FloatArray | None = None) -> Blocks:
    """Quantize finite float32 [rows, columns] to nearest.

    importance: float32 [columns], the weight of each column's squared error. If given, the scales of 4-bit blocks are
    searched for the least weighted error. It is ignored at 8 bits, where the search gains nothing.

    The scale is rounded to float16 before the integers are computed. llama.cpp's quantizer does it the other way round;
    these blocks are equally valid and closer to the weights.
    """
    rows, columns = weights.shape
    assert scheme.quantized
    assert columns % scheme.block_size == 0
    blocks = weights.reshape(rows, columns // scheme.block_size, scheme.block_size)
    scales = _scales(blocks, scheme.bits)
    if importance is not None and scheme.bits == 4:
        scales = search_scales(blocks, scales, importance=importance.reshape(blocks.shape[1:]))
    with np.errstate(divide="ignore"):
        inverse = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    zero_point = 1 << (scheme.bits - 1)
    levels = blocks * inverse[..., None]
    np.rint(levels, out=levels)
    levels += np.float32(zero_point)
    np.clip(levels, 0 if scheme.bits == 4 else 1, 2 * zero_point - 1, out=levels)
    values = levels.astype(np.uint8)
    packed = values if scheme.bits == 8 else values[..., 0::2] | (values[..., 1::2] << np.uint8(4))
    return Blocks(np.ascontiguousarray(packed), scales)


def dequantize(blocks: Blocks, scheme: Scheme) -> FloatArray:
    """Return the blocks as a float32 [rows, columns] weight."""
    rows = blocks.packed.shape[0]
    if scheme.bits == 4:
        values = np.stack((blocks.packed & np.uint8(15), blocks.packed >> np.uint8(4)), axis=-1)
        values = values.reshape(*blocks.scales.shape, scheme.block_size)
    else:
        values = blocks.packed
    levels = values.astype(np.float32) - np.float32(1 << (scheme.bits - 1))
    return np.asarray((levels * blocks.scales[..., None]).reshape(rows, -1), np.float32)


def _scales(blocks: FloatArray, bits: int) -> FloatArray:
    """Return one scale per block, rounded through float16."""
    highest, lowest = blocks.max(axis=-1), blocks.min(axis=-1)
    if bits == 8:
        exact = np.maximum(highest, -lowest) / np.float32(127)
    else:  # the largest magnitude of either sign (first of equals) becomes level 0, which has no positive counterpart
        exact = np.where(highest > -lowest, highest, lowest)
        ties = highest == -lowest
        if ties.any():
            tied = blocks[ties]
            exact[ties] = np.take_along_axis(tied, np.abs(tied).argmax(axis=-1)[:, None], axis=-1)[:, 0]
        exact = exact / np.float32(-8)
    return as_scales(exact)


def search_scales(blocks: FloatArray, start: FloatArray, *, importance: FloatArray) -> FloatArray:
    """Return the float16-representable scales [rows, n] for blocks [rows, n, size]; never worse than `start`.

    importance: [n, size], the weight of each column's squared error. Minimizes Σ importance · (x − q·scale)².
    """
    weights = _normalized(importance)
    weighted = blocks * weights
    largest, best = start * np.float32(-8), start.copy()
    lowest = np.full(start.shape, np.inf, np.float32)
    for level in _LARGEST_LEVELS:
        levels = levels_of(blocks, as_scales(largest / np.float32(level)))
        product = np.einsum("rnb,rnb->rn", levels, weighted)
        power = np.einsum("rnb,nb->rn", np.square(levels, out=levels), weights)
        scales = as_scales(np.divide(product, power, out=np.zeros_like(product), where=power > 0))
        error = scales * (scales * power - 2 * product)  # without Σ weights · x², which is constant
        better = error < lowest
        lowest[better], best[better] = error[better], scales[better]
    worse = _error(blocks, best, weights) >= _error(blocks, start, weights)
    best[worse] = start[worse]
    return best


def levels_of(blocks: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the nearest levels from -8 to 7, as float32 [rows, n, size]."""
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    levels = blocks * inverse[..., None]
    np.rint(levels, out=levels)
    return np.clip(levels, -8, 7, out=levels)


def as_scales(values: FloatArray) -> FloatArray:
    """Clip to float16's range and round through float16; the result is float32."""
    return np.asarray(np.clip(values, -_LARGEST_SCALE, _LARGEST_SCALE).astype(np.float16), np.float32)


def _error(blocks: FloatArray, scales: FloatArray, weights: FloatArray) -> FloatArray:
    rest = levels_of(blocks, scales)
    rest *= scales[..., None]
    rest -= blocks
    return np.asarray(np.einsum("rnb,nb->rn", np.square(rest, out=rest), weights), np.float32)


def _normalized(importance: FloatArray) -> FloatArray:
    """Scale the importance to mean 1, with a minimum above zero."""
    mean = float(importance.mean())
    if mean <= 0:
        return np.ones_like(importance)
    return np.asarray(np.maximum(importance / np.float32(mean), _MIN_IMPORTANCE), np.float32)
