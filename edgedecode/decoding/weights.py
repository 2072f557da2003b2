"""From a row of logits to the weights that a token is drawn with: temperature, top-k, top-p, min-p. Draws nothing.

Weights are float32, the largest is 1. Sums of them are of integers, in units of 2**-40, so that no order of addition
matters; every float operation stands alone in a stated order. Native code gives the same bits (`row_draw`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedecode.errors import CapabilityError, InputError

from .arrays import FloatArray, IntArray

__all__ = [
    "MASS_UNIT",
    "SamplingOptions",
    "damaged_logits",
    "exponent_scale",
    "largest",
    "masses",
    "penalised",
    "total_mass",
    "unnormalised",
    "weighted",
]


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to draw a token. temperature 0 is greedy: the arg-max of the penalised row.

    top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off. Raises InputError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, value, good in (
            ("temperature", self.temperature, self.temperature == 0 or 1e-6 <= self.temperature <= 100),
            ("top_k", self.top_k, 0 <= self.top_k <= 2**31),
            ("top_p", self.top_p, 0 < self.top_p <= 1),
            ("min_p", self.min_p, 0 <= self.min_p <= 1),
            ("repetition_penalty", self.repetition_penalty, 0 < self.repetition_penalty <= 100),
        ):
            if not good or not math.isfinite(value):
                raise InputError(f"{name} {value} is out of range: {_RANGES[name]}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


_RANGES = {
    "temperature": "0 (greedy), or 0.000001 to 100",
    "top_k": "0 (off) or more",
    "top_p": "above 0, up to 1 (off)",
    "min_p": "0 (off) to 1",
    "repetition_penalty": "above 0 (1 is off), up to 100",
}


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


def penalised(logits: FloatArray, seen: IntArray, penalty: float) -> FloatArray:
    """Divide positive and multiply negative logits of every index seen (CTRL, 1909.05858), each index once."""
    result = logits.copy()
    values = result[seen]
    result[seen] = np.where(values > 0, values / np.float32(penalty), values * np.float32(penalty))
    return result


def weighted(logits: FloatArray, options: SamplingOptions) -> tuple[IntArray | None, FloatArray]:
    """Return the indices that may be drawn, ascending, and their weights, which are positive and do not sum to 1.

    None stands for all indices.

    Indices that tie with the last one of top-k or top-p are kept. Raises CapabilityError for a NaN, or where the
    largest logit is infinite.
    """
    top = logits[largest(logits)]
    if not np.isfinite(top):
        raise damaged_logits()
    indices: IntArray | None = None
    if 0 < options.top_k < len(logits):
        least = np.partition(logits, -options.top_k)[-options.top_k]
        indices = np.flatnonzero(logits >= least)
        logits = logits[indices]
    weights = unnormalised(logits, top, exponent_scale(options.temperature))
    # The largest weight is 1 and top-p keeps it, so min-p is a floor on the weights whatever top-p removes.
    floor = np.float32(options.min_p)
    if options.top_p < 1:
        floor = max(floor, _nucleus_floor(weights, options.top_p))
    if floor <= 0 and weights.all():
        return indices, weights
    kept = np.flatnonzero(weights >= floor) if floor > 0 else np.flatnonzero(weights)
    return (kept if indices is None else indices[kept]), weights[kept]


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


def _nucleus_floor(weights: FloatArray, top_p: float) -> np.float32:
    """Return the smallest weight inside the nucleus: of the fewest likeliest indices whose share reaches `top_p`."""
    total = total_mass(weights)
    enough = max(1, int(top_p * float(total)))
    # Weights below an even share of what may be left out are, together, less than that.
    share = (total - enough) / len(weights) / MASS_UNIT * (1 - 2.0**-20) - 1 / MASS_UNIT
    head = np.sort(weights[weights >= np.float32(max(share, 0.0))])[::-1]
    place = int(np.searchsorted(np.cumsum(masses(head)), enough))
    return np.float32(head[place])
