"""The share of cases in which something happened, with its confidence bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["CONFIDENCE", "Rate"]

CONFIDENCE = 0.95
"""Coverage of the two bounds together; Clopper-Pearson's bounds cover at least this for every share and total."""
_HALVINGS = 60
"""Bisection steps on the interval from 0 to 1: beyond the precision of float64."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` of `total` independent cases; `total` is at least 1."""

    count: int
    total: int

    @property
    def share(self) -> float:
        return self.count / self.total

    @property
    def low(self) -> float:
        """The lower confidence bound of the share (Clopper-Pearson)."""
        return 0.0 if not self.count else self._share_where(self.count - 1, (1 + CONFIDENCE) / 2)

    @property
    def high(self) -> float:
        """The upper confidence bound of the share (Clopper-Pearson)."""
        return 1.0 if self.count == self.total else self._share_where(self.count, (1 - CONFIDENCE) / 2)

    def __str__(self) -> str:
        bounds = f"{_percent(self.low)} to {_percent(self.high)}% at {CONFIDENCE:.0%} confidence"
        return f"{self.count} of {self.total}, {_percent(self.share)}% ({bounds})"

    def _share_where(self, count: int, probability: float) -> float:
        """Find the share at which `count` or fewer of the cases have this probability, by halving."""
        counts = np.arange(count + 1)
        ways = np.array([_log_ways(self.total, k) for k in range(count + 1)])
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            logs = ways + counts * math.log(middle) + (self.total - counts) * math.log1p(-middle)
            low, high = (middle, high) if np.exp(logs).sum() > probability else (low, middle)
        return (low + high) / 2


def _log_ways(total: int, count: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)


def _percent(share: float) -> str:
    """Render a share with two significant digits of it, or of what it lacks to the whole."""
    rest = min(share, 1 - share)
    decimals = max(0, 1 - math.floor(math.log10(100 * rest))) if 0 < rest < 0.1 else 0
    text = f"{100 * share:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
