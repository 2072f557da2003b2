"""When the draft model hands over: thresholds on a signal of its uncertainty.

A signal is a number for a row of logits, larger where the model is less sure of its next token. It looks at the raw
softmax, before temperature and penalties.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import InputError
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


SIGNALS: Mapping[str, Signal] = {"entropy": entropy, "doubt": _doubt, "rivalry": _rivalry}
"""By name, as calibrated curves and options name them."""


STRETCH = 8
"""Tokens written at most before they are shown. More: text appears in larger pieces."""


@dataclass(frozen=True, slots=True)
class SwitchRule:
    """The target writes a token at whose row the draft model's signal, a name of `SIGNALS`, is `up` or more.

    Averages over several tokens, and letting the target write several in a row, need more of the target's tokens
    (docs/measurements.md). Raises InputError for values out of range.
    """

    up: float
    signal: str = "entropy"

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise InputError(f"no signal is called {self.signal!r}: there are {', '.join(SIGNALS)}")
        if not self.up >= 0:
            raise InputError(f"a switching threshold is 0 or more, not {self.up}")
