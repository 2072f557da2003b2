"""What a drafter's first, second, third guess are worth at each depth of a tree, learnt from what was emitted.

Counts fade, so that a text that changes is noticed, and lean on a prior.
"""

from __future__ import annotations

from edgedecode.decoding.tree import RankRates

__all__ = ["RANKS", "RATES_AFTER", "RankSurvival", "kept_rates"]

_DEPTHS = 4
"""The last of them is also all deeper ones."""
_PRIORS: tuple[float, ...] = (0.45, 0.1, 0.04, 0.02)
"""The chance of each rank before anything was seen: little enough that a tree is no better than nothing."""
RANKS = len(_PRIORS)
"""How many ranks are told apart."""
_PRIOR_WEIGHT = 4.0
_FADE = 0.97
RATES_AFTER = 8
"""Scores after which rates are worked out again, fewer while little is known: they fade slowly, rounds ask often."""
_MOVED = 0.03
"""How far a rate must move before shapes are thought over: less would change none."""


class RankSurvival:
    """Counts by depth and rank. A fold: same scores, same rates."""

    def __init__(self) -> None:
        self._hits = [[0.0] * len(_PRIORS) for _ in range(_DEPTHS)]
        self._tried = [0.0] * _DEPTHS
        self._rates: RankRates | None = None
        self._scored = RATES_AFTER

    def score(self, depth: int, rank: int | None) -> None:
        """Count which guess was the target's token, at this depth of an accepted path; None: none of them."""
        self._scored += 1
        depth = min(depth, _DEPTHS - 1)
        self._hits[depth] = hits = [_FADE * count for count in self._hits[depth]]
        self._tried[depth] = _FADE * self._tried[depth] + 1
        if rank is not None:
            hits[rank] += 1

    def rates(self) -> RankRates:
        """Return [depth][rank] → chance; the same object until one of them moved."""
        if self._rates is not None and self._scored < min(RATES_AFTER, 1 + self._tried[0] / 4):
            return self._rates
        self._scored = 0
        rates: list[tuple[float, ...]] = []
        prior = _PRIORS
        for hits, tried in zip(self._hits, self._tried, strict=True):  # a depth's prior is what the one above it showed
            prior = tuple(
                (count + _PRIOR_WEIGHT * chance) / (tried + _PRIOR_WEIGHT)
                for count, chance in zip(hits, prior, strict=True)
            )
            rates.append(prior)
        self._rates = kept_rates(self._rates, tuple(rates))
        return self._rates


def kept_rates(known: RankRates | None, rates: RankRates) -> RankRates:
    """Return `known` where none of `rates` is far from it, else `rates`."""
    if known is None:
        return rates
    pairs = (pair for old, new in zip(known, rates, strict=True) for pair in zip(old, new, strict=True))
    return rates if any(abs(old - new) > _MOVED for old, new in pairs) else known
