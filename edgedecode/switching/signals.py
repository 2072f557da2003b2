"""Signals of uncertainty: a number for a row of logits, larger where the model is less sure of its next token.

They look at the raw softmax, before temperature and penalties.
"""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias
from zlib import crc32

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.sampling.row_draw import Leading, RowDraw

_NEGLIGIBLE = np.float32(-80)
"""A logit this far below the largest one has no weight; a logit of minus infinity counts as this."""

Signal: TypeAlias = Callable[[FloatArray, RowDraw], float]
"""Takes a row of logits without padding and the session's `RowDraw`."""


def entropy(row: FloatArray, _draw: RowDraw | None = None) -> float:
    """Return the entropy of the softmax in nats, as entropy-adaptive decoding does (EAD, 2502.06833)."""
    shifted = np.maximum(row - row.max(), _NEGLIGIBLE)
    weights = np.exp(shifted)
    total = float(weights.sum(dtype=np.float64))
    return math.log(total) - float(weights @ shifted) / total


def _doubt(row: FloatArray, draw: RowDraw) -> float:
    """Return the probability of all tokens but the likeliest."""
    return 1.0 - draw.leading(row).probability


def _rivalry(row: FloatArray, draw: RowDraw) -> float:
    """Return the second token's probability relative to the first's: 1 for a tie, 0 where there is no second."""
    leading: Leading = draw.leading(row)
    return math.exp(-leading.margin)


def _chance(row: FloatArray, _draw: RowDraw) -> float:
    """Return a pseudo-random number from 0 to 1: a control, which any signal must beat."""
    return crc32(row[:64].tobytes()) / 0xFFFFFFFF


CONTROL = "chance"
SIGNALS: Mapping[str, Signal] = {"entropy": entropy, "doubt": _doubt, "rivalry": _rivalry, CONTROL: _chance}
"""By name, as calibrated curves and options name them."""
