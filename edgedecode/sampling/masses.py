"""Exponentials of a row's logits, and exact sums of them, in numpy; native code gives the same bits (`row_draw`).

Sums are of integers, in units of 2**-40, so that the order of addition does not matter. Every float operation is
separate and in a fixed order.
"""

import math

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError

MASS_UNIT = 2.0**40
_PIECE = 16384
"""Elements per step; pieces of this size stay in the CPU cache."""
_LEAST_EXPONENT = np.float32(-125)
"""Weights below 2**-125 are set to 0, so that no result is subnormal."""
_ROUNDER = np.float32(1.5 * 2**23)
"""Adding it rounds a float to an integer, which is then in the low bits."""
_ROUNDER_BITS = _ROUNDER.view(np.uint32)
_23 = np.uint32(23)
_COEFFICIENTS = [
    np.float32(float.fromhex(text))
    for text in ("0x1.444004p-13", "0x1.5f0896p-10", "0x1.3b2a1cp-7", "0x1.c6af6cp-5", "0x1.ebfbe0p-3", "0x1.62e430p-1")
]
"""Coefficients of (2**f - 1) / f on [-1/2, 1/2], highest power first, by Chebyshev interpolation."""


def damaged_logits() -> CapabilityError:
    """Return the error for logits that are not numbers."""
    return CapabilityError(
        "the model's logits are not numbers: its weights are damaged (check with --verify), or the engine's "
        "kernels fail on this machine"
    )


def exponent_scale(temperature: float) -> np.float32:
    """Return the factor that converts a difference of logits to an exponent of 2."""
    return np.float32(math.log2(math.e) / temperature)


def largest(logits: FloatArray) -> int:
    """Return the index of the largest logit, the first of equal ones. Raises CapabilityError if one is NaN."""
    best = int(logits.argmax())
    if logits[best] != logits[best]:  # numpy's arg-max is the first NaN, if there is one
        raise damaged_logits()
    return best


def unnormalised(logits: FloatArray, top: np.float32, scale: np.float32) -> FloatArray:
    """Return 2**((logit - top) * scale) for logits up to `top`, as float32; 0 below 2**-125."""
    weights = np.empty(len(logits), np.float32)
    spare = np.empty((3, min(_PIECE, len(logits))), np.float32)
    with np.errstate(over="ignore"):  # an overflow to -inf gives weight 0, as intended
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


def masses(weights: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Return the weights in units of 2**-40, rounded to nearest; 2**23 of them can be added without overflow."""
    units = weights.astype(np.float64)
    units *= MASS_UNIT
    return np.rint(units, out=units).astype(np.int64)


def _powers(exponents: FloatArray, rounded: FloatArray, f: FloatArray, *, out: FloatArray) -> None:
    """Write 2**exponent for exponents up to 0, to within 1.0e-7 of it; the other three arrays are overwritten."""
    underflow = exponents < _LEAST_EXPONENT if exponents.min() < _LEAST_EXPONENT else None
    if underflow is not None:
        exponents[underflow] = 0
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
    if underflow is not None:
        out[underflow] = 0
