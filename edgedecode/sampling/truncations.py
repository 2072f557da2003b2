"""What options keep of a row: limits of its logits, and masks of its weights.

Sums are of integers (`masses`), so that the order of addition does not matter.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray

from .counter_rng import logarithm
from .masses import MASS_UNIT, masses, total_mass

Truncation = Callable[[FloatArray, float], npt.NDArray[np.bool_]]
"""(weights, at least one of them positive, the option's value) → a mask of the weights to keep, at least one."""
Floor = Callable[[FloatArray, float], np.float32]
"""(a row of logits after the penalties, the option's value) → the smallest logit to keep, at most the largest one."""

_LEAST = np.float32(2.0**-125)
"""The smallest positive weight."""
_FARTHEST, _STEPS = 1000, 2**12
"""Of `near_top`: distance of the logits that count, and steps per unit, whose squares add up to less than 2**63."""


def kth_largest(logits: FloatArray, top_k: float) -> np.float32:
    """Return the k-th largest logit, with which ties are kept; the smallest if there are fewer."""
    place = max(0, len(logits) - int(top_k))
    return np.float32(np.partition(logits, place)[place])


def near_top(logits: FloatArray, sigmas: float) -> np.float32:
    """Return the largest logit minus `sigmas` standard deviations of the row (top-nσ, 2411.07641).

    Logits 1,000 below the largest do not count: a bias or a grammar excludes them.
    """
    top = float(logits.max())
    steps = np.rint((top - logits[logits > top - _FARTHEST].astype(np.float64)) * _STEPS).astype(np.int64)
    count, total, squares = len(steps), int(steps.sum()), int((steps * steps).sum())
    return np.float32(top - sigmas * math.sqrt(count * squares - total * total) / (count * _STEPS))


def nucleus(weights: FloatArray, top_p: float) -> npt.NDArray[np.bool_]:
    """Keep the smallest set of likeliest tokens whose share reaches `top_p`, and ties with the last of them."""
    return weights >= _nucleus_floor(weights, top_p)


def near_best(weights: FloatArray, min_p: float) -> npt.NDArray[np.bool_]:
    """Keep weights of at least `min_p` times the largest, which is 1 because top-p keeps it."""
    return weights >= np.float32(min_p)


def typical(weights: FloatArray, mass: float) -> npt.NDArray[np.bool_]:
    """Keep the tokens whose surprise is closest to the expected one, until their share reaches `mass`, and ties.

    Surprise is -ln p, its expectation the entropy (locally typical sampling, 2202.00666); so the likeliest may go.
    """
    surprises = -logarithm(np.maximum(weights, _LEAST).astype(np.float64))  # up to the same constant as the expectation
    units, shares = masses(weights), masses(weights * surprises)
    total = int(units.sum())
    distances = np.where(weights > 0, np.abs(surprises - float(shares.sum()) / float(total)), np.inf)
    nearest = np.argsort(distances, kind="stable")
    place = int(np.searchsorted(np.cumsum(units[nearest]), max(1, int(mass * float(total)))))
    kept: npt.NDArray[np.bool_] = distances <= distances[nearest[place]]
    return kept


def without_best(weights: FloatArray, threshold: float) -> npt.NDArray[np.bool_]:
    """Drop all tokens that have a share of `threshold` or more, except the least likely of them and ties with it.

    XTC, "exclude top choices", by p-e-w: oobabooga/textgen, pull request 6335. It is applied by chance, once per token.
    """
    top_choices = weights * MASS_UNIT >= np.float64(threshold) * total_mass(weights)
    return weights <= np.float32(weights[top_choices].min(initial=np.inf))


def unsurprising(weights: FloatArray, bits: float) -> npt.NDArray[np.bool_]:
    """Keep the tokens whose surprise, -log2 of their share, is at most `bits`; if there are none, the likeliest."""
    least = np.float64(2.0 ** min(0.0, -bits)) * total_mass(weights)
    return weights * MASS_UNIT >= min(least, np.float64(weights.max() * MASS_UNIT))


def _nucleus_floor(weights: FloatArray, top_p: float) -> np.float32:
    """Return the smallest weight in the nucleus, the smallest set of likeliest indices whose share reaches `top_p`."""
    total = total_mass(weights)
    enough = max(1, int(top_p * float(total)))
    # All weights below an even share of the mass to drop sum to less than that mass, so they need not be sorted.
    share = (total - enough) / len(weights) / MASS_UNIT * (1 - 2.0**-20) - 1 / MASS_UNIT
    head = np.sort(weights[weights >= np.float32(max(share, 0.0))])[::-1]
    place = int(np.searchsorted(np.cumsum(masses(head)), enough))
    return np.float32(head[place])
