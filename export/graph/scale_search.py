"""Scales of 4-bit blocks: those of the largest weights, and those with the least weighted error.

The search follows `make_qx_quants` (ggml-quants.c), which llama.cpp uses with an importance matrix: try several levels
for the largest value, fit the scale to the resulting integers, keep the best.
"""

import numpy as np

from edgedecode.arrays import FloatArray

_LARGEST_SCALE = float(np.finfo(np.float16).max)
_LARGEST_LEVELS = (-7.0, -7.3, -7.6, -7.9, -8.2, -8.5, -8.8, -9.4, 7.0, 7.4, 7.8, 8.4)
"""Levels tried for a block's largest magnitude. Beyond -8 and 7 it is clipped, which gives the others finer steps."""


def largest_scales(blocks: FloatArray) -> FloatArray:
    """Return the scales [rows, n] with which the largest magnitude of each block [rows, n, size] becomes level -8.

    That level has no positive counterpart. Of equal magnitudes the first counts. Rounded through float16.
    """
    highest, lowest = blocks.max(axis=-1), blocks.min(axis=-1)
    exact = np.where(highest > -lowest, highest, lowest)
    ties = highest == -lowest
    if ties.any():
        tied = blocks[ties]
        exact[ties] = np.take_along_axis(tied, np.abs(tied).argmax(axis=-1)[:, None], axis=-1)[:, 0]
    return as_scales(exact / np.float32(-8))


def search_scales(blocks: FloatArray, *, importance: FloatArray) -> FloatArray:
    """Return the float16-representable scales [rows, n] for blocks [rows, n, size]; never worse than the largest.

    importance: [n, size], above 0: the weight of each column's squared error. Minimizes Σ importance · (x − q·scale)².
    """
    start, weights = largest_scales(blocks), importance / importance.mean()
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
