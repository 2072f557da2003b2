"""Exponentials of a row's logits, and exact sums of them, in numpy; native code gives the same bits (`row_draw`).

Sums are of integers, in units of 2**-40, so that no order of addition matters; every float operation stands alone in a
stated order.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError

__all__ = ["MASS_UNIT", "damaged_logits", "exponent_scale", "largest", "masses", "total_mass", "unnormalised"]

MASS_UNIT = 2.0**40
_PIECE = 16384
"""Pieces of this size stay in the cache."""
_LEAST_EXPONENT = np.float32(-125)
"""Weights below 2**-125 are 0: no result is subnormal."""
_ROUNDER = np.float32(1.5 * 2**23)
"""Adding it rounds to an integer, in the low bits."""
_ROUNDER_BITS = _ROUNDER.view(np.uint32)
_23 = np.uint32(23)
_COEFFICIENTS = [
    np.float32(float.fromhex(text))
    for text in ("0x1.444004p-13", "0x1.5f0896p-10", "0x1.3b2a1cp-7", "0x1.c6af6cp-5", "0x1.ebfbe0p-3", "0x1.62e430p-1")
]
"""Of (2**f - 1) / f on [-1/2, 1/2], by f's powers, the highest first: Chebyshev interpolation."""


def damaged_logits() -> CapabilityError:
    """Return the error for logits that are not numbers."""
    return CapabilityError(
        "the model's logits are not numbers: its weights are damaged (check with --verify), or the engine's "
        "kernels fail on this machine"
    )


def exponent_scale(temperature: float) -> np.float32:
    """Return what a difference of logits is multiplied by to be an exponent of 2."""
    return np.float32(math.log2(math.e) / temperature)


def largest(logits: FloatArray) -> int:
    """Return the index of the largest logit, the first of equal ones. Raises CapabilityError where one is NaN."""
    best = int(logits.argmax())
    if logits[best] != logits[best]:  # numpy's arg-max is the first NaN where there is one
        raise damaged_logits()
    return best


def unnormalised(logits: FloatArray, top: np.float32, scale: np.float32) -> FloatArray:
    """Return 2**((logit - top) * scale) for logits up to `top`, as float32; 0 below 2**-125."""
    weights = np.empty(len(logits), np.float32)
    spare = np.empty((3, min(_PIECE, len(logits))), np.float32)
    with np.errstate(over="ignore"):  # infinitely far below the top is far enough
        for start in range(0, len(logits), _PIECE):
            piece = logits[start : start + _PIECE]
            exponents, rounded, f = spare[:, : len(piece)]
            np.subtract(piece, top, out=exponents)
            exponents *= scale
            _powers(exponents, rounded, f, out=weights[start : start + _PIECE])
    return weights


def total_mass(weights: FloatArray) -> int:
    """Return the sum of the weights' masses."""
    return sum(int(masses(weights[start : start + _PIECE]).sum()) for start in range(0, len(weights), _PIECE))


def masses(weights: FloatArray) -> npt.NDArray[np.int64]:
    """Return the weights in units of 2**-40, to the nearest: 2**23 of them can be added."""
    units = weights.astype(np.float64)
    units *= MASS_UNIT
    return np.rint(units, out=units).astype(np.int64)


def _powers(exponents: FloatArray, rounded: FloatArray, f: FloatArray, *, out: FloatArray) -> None:
    """Write 2**exponent for exponents up to 0, to within 1.0e-7 of it; the other three arrays are overwritten."""
    gone = exponents < _LEAST_EXPONENT if exponents.min() < _LEAST_EXPONENT else None
    if gone is not None:
        exponents[gone] = 0
    np.add(exponents, _ROUNDER, out=rounded)
    np.subtract(rounded, _ROUNDER, out=f)
    np.subtract(exponents, f, out=f)
    np.multiply(f, _COEFFICIENTS[0], out=out)
    for coefficient in _COEFFICIENTS[1:]:
        out += coefficient
        out *= f
    out += np.float32(1)
    bits, shifts = out.view(np.uint32), rounded.view(np.uint32)
    shifts -= _ROUNDER_BITS
    shifts <<= _23
    bits += shifts
    if gone is not None:
        out[gone] = 0
