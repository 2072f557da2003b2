"""Confidence intervals of accuracies: Wilson's for a share, bootstrap for two arms over the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

__all__ = ["Interval", "paired_difference", "paired_ratio", "share_interval", "share_lower_bound"]

CONFIDENCE = 0.95
RESAMPLES = 4000
"""Bootstrap resamples. More make the bounds steadier, and take longer."""
_BLOCK = 1 << 22
"""Most indexes that are drawn at a time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def share_interval(count: int, total: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Return a share with Wilson's two-sided interval. total: at least 1."""
    low, high = _wilson(count, total, NormalDist().inv_cdf((1 + confidence) / 2))
    return Interval(count / total, low, high)


def share_lower_bound(count: int, total: int, *, confidence: float = CONFIDENCE) -> float:
    """Return Wilson's one-sided lower bound of a share. total: at least 1."""
    return _wilson(count, total, NormalDist().inv_cdf(confidence))[0]


def paired_difference(
    first: Sequence[bool], second: Sequence[bool], *, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval:
    """Return how much the accuracy of `first` is above that of `second` over the same tasks, in the same order.

    The bounds are percentiles of resampled sets of tasks. At least one task is needed.
    """
    one, two = _means(first, second, seed=seed)
    low, high = np.quantile(one - two, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.mean(first) - np.mean(second)), float(low), float(high))


def paired_ratio(
    first: Sequence[bool],
    second: Sequence[bool],
    *,
    confidence: float = CONFIDENCE,
    one_sided: bool = False,
    seed: int = 0,
) -> Interval | None:
    """Return the accuracy of `first` divided by that of `second`, as `paired_difference`; None if the latter is 0.

    one_sided: `low` is then the one-sided lower bound, and `high` infinite. Resampled sets in which `second` has no
    correct answer count as a ratio of infinity if `first` has one, and of 1 if not.
    """
    if not any(second):
        return None
    one, two = _means(first, second, seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(two > 0, one / two, np.where(one > 0, np.inf, 1.0))
    value = float(np.mean(first) / np.mean(second))
    if one_sided:
        return Interval(value, _percentile(ratios, 1 - confidence), math.inf)
    return Interval(value, _percentile(ratios, (1 - confidence) / 2), _percentile(ratios, (1 + confidence) / 2))


def _percentile(values: npt.NDArray[np.float64], share: float) -> float:
    """Return a percentile without interpolation, which infinite values do not allow."""
    return float(np.quantile(values, share, method="lower" if share < 0.5 else "higher"))


def _wilson(count: int, total: int, deviations: float) -> tuple[float, float]:
    share, square = count / total, deviations**2 / total
    middle = share + square / 2
    half = deviations * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def _means(
    first: Sequence[bool], second: Sequence[bool], *, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return both accuracies in each resampled set of tasks."""
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} results are not pairs")
    pairs = np.array([first, second], np.float64)
    random = np.random.default_rng(seed)
    most = max(1, _BLOCK // len(first))
    parts = []
    for done in range(0, RESAMPLES, most):
        chosen = random.integers(0, len(first), (min(most, RESAMPLES - done), len(first)))
        parts.append(pairs[:, chosen].mean(axis=2))
    means = np.concatenate(parts, axis=1)
    return means[0], means[1]
