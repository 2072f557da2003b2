"""The scale of each 4-bit block that loses least where it matters: a search weighted by what the columns carry.

Follows llama.cpp's `make_qx_quants` (ggml-quants.c), which its importance matrix drives: try a few levels for the
largest value, fit the scale to the integers that each gives, keep the best.
"""

from __future__ import annotations

import numpy as np

from edgedecode.decoding.arrays import FloatArray

__all__ = ["as_scales", "levels_of", "search_scales"]

_LARGEST_SCALE = float(np.finfo(np.float16).max)
_LARGEST_LEVELS = (-7.0, -7.3, -7.6, -7.9, -8.2, -8.5, -8.8, -9.4, 7.0, 7.4, 7.8, 8.4)
"""Where the largest magnitude of a block may fall; beyond -8 and 7 it is cut, so that the others get finer steps."""
_SMALLEST_SHARE = 1e-6
"""Least importance of a column, of the mean one: what the text never reached still counts a little."""


def search_scales(blocks: FloatArray, start: FloatArray, *, importance: FloatArray) -> FloatArray:
    """Return the float16-representable scales [rows, n] for blocks [rows, n, size]; never worse than `start`.

    importance: [n, size], what a column's squared error counts. The error compared is Σ importance · (x − q·scale)².
    """
    weights = _floored(importance)
    weighted = blocks * weights
    largest, best = start * np.float32(-8), start.copy()
    lowest = np.full(start.shape, np.inf, np.float32)
    for level in _LARGEST_LEVELS:
        levels = levels_of(blocks, as_scales(largest / np.float32(level)))
        product = np.einsum("rnb,rnb->rn", levels, weighted)
        power = np.einsum("rnb,nb->rn", np.square(levels, out=levels), weights)
        scales = as_scales(np.divide(product, power, out=np.zeros_like(product), where=power > 0))
        error = scales * (scales * power - 2 * product)  # without Σ weights · x², the same for all
        better = error < lowest
        lowest[better], best[better] = error[better], scales[better]
    worse = _error(blocks, best, weights) >= _error(blocks, start, weights)
    best[worse] = start[worse]
    return best


def levels_of(blocks: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the nearest of the levels -8 to 7, as float32 [rows, n, size]."""
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    levels = blocks * inverse[..., None]
    np.rint(levels, out=levels)
    return np.clip(levels, -8, 7, out=levels)


def as_scales(values: FloatArray) -> FloatArray:
    """Round through float16, cut to its range; the result is float32."""
    return np.asarray(np.clip(values, -_LARGEST_SCALE, _LARGEST_SCALE).astype(np.float16), np.float32)


def _error(blocks: FloatArray, scales: FloatArray, weights: FloatArray) -> FloatArray:
    rest = levels_of(blocks, scales)
    rest *= scales[..., None]
    rest -= blocks
    return np.asarray(np.einsum("rnb,nb->rn", np.square(rest, out=rest), weights), np.float32)


def _floored(importance: FloatArray) -> FloatArray:
    """Return weights above zero whose mean is 1."""
    mean = float(importance.mean())
    if mean <= 0:
        return np.ones_like(importance)
    return np.asarray(np.maximum(importance / np.float32(mean), _SMALLEST_SHARE), np.float32)
