"""Estimates how often a drafter's first, second, third guess is right at each depth, from the emitted tokens.

Counts decay, to follow a changing text, and are smoothed by a prior.
"""

from __future__ import annotations

from edgedecode.decoding.tree import RankRates

_DEPTHS = 4
"""Depths with separate counts; deeper ones share the last."""
_PRIORS: tuple[float, ...] = (0.45, 0.1, 0.04, 0.02)
"""The chance of each rank before any observation: so low that a tree is not expected to be faster than no draft."""
RANKS = len(_PRIORS)
"""Number of ranks with separate counts."""
_PRIOR_WEIGHT = 4.0
_FADE = 0.97
RATES_AFTER = 8
"""Scores after which rates are recomputed, fewer at first: they change slowly but are requested every round."""
_MOVED = 0.03
"""Change of a rate after which shapes are recomputed: smaller ones do not alter them."""


class RankSurvival:
    """Counts by depth and rank. Deterministic given the scores."""

    def __init__(self) -> None:
        self._hits = [[0.0] * len(_PRIORS) for _ in range(_DEPTHS)]
        self._tried = [0.0] * _DEPTHS
        self._rates: RankRates | None = None
        self._scored = RATES_AFTER

    def score(self, depth: int, rank: int | None) -> None:
        """Count which guess was the target's token at this depth of an accepted path; None: no guess."""
        self._scored += 1
        depth = min(depth, _DEPTHS - 1)
        self._hits[depth] = hits = [_FADE * count for count in self._hits[depth]]
        self._tried[depth] = _FADE * self._tried[depth] + 1
        if rank is not None:
            hits[rank] += 1

    def rates(self) -> RankRates:
        """Return [depth][rank] → chance; the same object until one of them changes."""
        if self._rates is not None and self._scored < min(RATES_AFTER, 1 + self._tried[0] / 4):
            return self._rates
        self._scored = 0
        rates: list[tuple[float, ...]] = []
        prior = _PRIORS
        for hits, tried in zip(self._hits, self._tried, strict=True):  # each depth's prior is the rates above it
            prior = tuple(
                (count + _PRIOR_WEIGHT * chance) / (tried + _PRIOR_WEIGHT)
                for count, chance in zip(hits, prior, strict=True)
            )
            rates.append(prior)
        self._rates = stable_rates(self._rates, tuple(rates))
        return self._rates


def stable_rates(known: RankRates | None, rates: RankRates) -> RankRates:
    """Return `known` if all `rates` are close to it, else `rates`."""
    if known is None:
        return rates
    pairs = (pair for old, new in zip(known, rates, strict=True) for pair in zip(old, new, strict=True))
    return rates if any(abs(old - new) > _MOVED for old, new in pairs) else known
