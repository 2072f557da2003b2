"""Rounds weights so that products change least on a text: each column's error is corrected in the columns after it.

GPTQ (Frantar et al., 2210.17323): the squared error of a product is (w - q) E[x xᵀ] (w - q)ᵀ, where x are the product's
inputs on the text. Rows are independent of each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from edgedecode.arrays import FloatArray

from .scale_search import search_scales

_MOST = 1024
"""Columns of a piece: memory for moments grows with it, and correlations between pieces are left out."""
_UNIT = 128
"""Pieces end between blocks of every size."""
_DAMPING = 0.01
"""Share of the mean square added to each column's, as in the paper: what the text never activates counts too."""


def pieces_of(columns: int) -> list[range]:
    """Return the ranges of columns whose second moments are kept, of nearly equal size."""
    units = -(-columns // _UNIT)
    count = -(-columns // _MOST)
    ends = [min(columns, _UNIT * (units * number // count)) for number in range(count + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Moments:
    """Second moments of a product's inputs on a text, E[x xᵀ]: float32 [n, n] for each piece of the columns."""

    pieces: tuple[FloatArray, ...]

    def factors(self) -> list[FloatArray]:
        """Return, for each piece, the upper triangular U with UᵀU = the inverse of the damped moments."""
        return [_factor(piece) for piece in self.pieces]

    def means(self) -> FloatArray:
        """Return the mean square of each column, float32 [columns]."""
        return np.concatenate([piece.diagonal() for piece in self.pieces])


@dataclass(frozen=True, slots=True)
class Importance:
    """The mean square of each column of a product's inputs, float32 [columns]: moments without correlations.

    With them, scales are searched for the least weighted error, and no error is corrected elsewhere.
    """

    means: FloatArray

    def factors(self) -> list[FloatArray]:
        """Return the factors of the moments that have this diagonal, as `Moments.factors`."""
        return [_factor(np.diag(self.means[piece.start : piece.stop])) for piece in pieces_of(len(self.means))]


Inputs: TypeAlias = Moments | Importance
"""What is known of a product's inputs."""


def rounded(weights: FloatArray, block_size: int, factors: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return levels from -8 to 7, float32 [rows, columns], and scales, float32 [rows, blocks], of float32 weights.

    factors: as from `Moments.factors`. A block's scale is searched when its turn comes, for the weights as corrected
    by then.
    """
    rest = np.array(weights.T, np.float32, order="C")  # column by column, and a copy
    levels, scales = np.empty_like(rest), np.empty((rest.shape[0] // block_size, rest.shape[1]), np.float32)
    first = 0
    for factor in factors:
        piece = rest[first : first + len(factor)]
        for start in range(0, len(factor), block_size):
            end = start + block_size
            inner, place = factor[start:end, start:end], first + start
            errors, scale = _block(piece[start:end], inner, out=levels[place : place + block_size])
            scales[place // block_size] = scale
            piece[end:] -= factor[start:end, end:].T @ errors
        first += len(factor)
    return np.ascontiguousarray(levels.T), np.ascontiguousarray(scales.T)


def _block(block: FloatArray, factor: FloatArray, *, out: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Write a block's levels to `out`, [columns, rows]; return the errors to correct behind it, and the scales.

    The block is overwritten with the corrected weights.
    """
    importance = np.square(1 / factor.diagonal())[None]
    scale = search_scales(np.ascontiguousarray(block.T)[:, None], importance=importance)[:, 0]
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    errors = np.empty_like(block)
    for column, values in enumerate(block):
        np.clip(np.rint(values * inverse), -8, 7, out=out[column])
        errors[column] = (values - out[column] * scale) / factor[column, column]
        block[column + 1 :] -= factor[column, column + 1 :, None] * errors[column]
    return errors, scale


def _factor(moments: FloatArray) -> FloatArray:
    damped = moments.astype(np.float64)
    mean = float(damped.diagonal().mean())
    if mean <= 0:
        return np.eye(len(damped), dtype=np.float32)
    damped.ravel()[:: len(damped) + 1] += _DAMPING * mean
    lower = np.linalg.cholesky(np.linalg.inv(damped))
    return np.asarray(lower.T, np.float32)
