"""When to hand over: thresholds on an uncertainty signal, averaged over the latest tokens of the model that writes.

A signal is a number for a row of logits, larger where the model is less sure of its next token. It looks at the raw
softmax, before temperature and penalties.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from zlib import crc32

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


def _chance(row: FloatArray, _draw: RowDraw) -> float:
    """Return a pseudo-random number from 0 to 1: a control, which any signal must beat."""
    return crc32(row[:64].tobytes()) / 0xFFFFFFFF


CONTROL = "chance"
SIGNALS: Mapping[str, Signal] = {"entropy": entropy, "doubt": _doubt, "rivalry": _rivalry, CONTROL: _chance}
"""By name, as calibrated curves and options name them."""


LONGEST = 1 << 20
"""Largest window and dwell in tokens."""
STRETCH = 8
"""Tokens written at most before they are shown, or checked. More: text appears in larger pieces, checks are wider."""


@dataclass(frozen=True, slots=True)
class SwitchRule:
    """Hand over to the target at a mean signal of `up` or more, and back to the draft model at `down` or less.

    signal: a name of `SIGNALS`. window: tokens that the mean is taken over, those since the last switch. dwell: tokens
    that a model writes at least before the next switch. The draft model's own dwell is 1: it is asked before each
    token, and a token that it is unsure of is the target's. Raises InputError for values out of range.
    """

    up: float
    down: float = math.inf
    signal: str = "entropy"
    window: int = 1
    dwell: int = 1

    @property
    def keeps_target(self) -> bool:
        """Whether the target may write several tokens before it hands back."""
        return self.dwell > 1 or not math.isinf(self.down)

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise InputError(f"no signal is called {self.signal!r}: there are {', '.join(SIGNALS)}")
        if not (self.up >= 0 and self.down >= 0):
            raise InputError(f"switching thresholds are 0 or more, not {self.up} and {self.down}")
        if not (1 <= self.window <= LONGEST and 1 <= self.dwell <= LONGEST):
            raise InputError(f"window {self.window} or dwell {self.dwell} is out of range: 1 to {LONGEST} tokens")


class Uncertainty:
    """The signal's mean over the latest tokens of the model that writes, and whether it is time to switch."""

    def __init__(self, rule: SwitchRule) -> None:
        self._rule = rule
        self._recent: deque[float] = deque(maxlen=rule.window)
        self._written = 0

    def reset(self) -> None:
        """Start over: another model writes now."""
        self._recent.clear()
        self._written = 0

    def unsure(self, value: float) -> bool:
        """Return whether the draft model should not write the token whose signal is `value`; else count the token."""
        self._recent.append(value)
        return not self._mean() < self._rule.up  # also for damaged logits

    def sure(self, value: float) -> bool:
        """Count a token of the target with this signal; return whether the draft model should write the next one."""
        self._recent.append(value)
        self._written += 1
        return self._written >= self._rule.dwell and self._mean() <= self._rule.down

    @property
    def held_tokens(self) -> int:
        """How many tokens the target writes next before it may hand back."""
        return max(self._rule.dwell - self._written, 1)

    def _mean(self) -> float:
        return math.fsum(self._recent) / len(self._recent)
