"""What another type of keys and values does to a model: scores of the same texts under both, added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.engines.text_scores import Scores
from edgedecode.pack.engine_equality import CONFIDENCE, Rate

__all__ = ["KvQuality", "TextScores", "quality_of", "ratio_bounds"]

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class TextScores:
    """One text: its scores, the nats by which its rows diverge from the reference's, the greedy answer to it."""

    scores: Scores
    divergence: float
    """Summed over its scored tokens."""
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class KvQuality:
    """One KV type on one engine, beside the reference type on the same texts."""

    kv_type: str
    kv_nbytes: int
    """Of one position's keys and values."""
    positions: int
    """Tokens that were scored."""
    perplexity: float
    ratio: float
    """The perplexity over the reference's."""
    ratio_low: float | None
    ratio_high: float | None
    """Of 95% of resampled sets of texts; None: one text says nothing of others."""
    leading: int
    """Positions with the reference's leading token."""
    divergence: float
    """Nats from the reference's rows, a position: over the likeliest ids and one class for all others."""
    texts: int
    identical: int
    """Greedy answers that are the reference's, token for token."""

    @property
    def leading_rate(self) -> Rate:
        return Rate(self.leading, self.positions)

    @property
    def identical_rate(self) -> Rate:
        return Rate(self.identical, self.texts)


def quality_of(
    found: Sequence[TextScores], reference: Sequence[TextScores], *, kv_type: str, kv_nbytes: int
) -> KvQuality:
    """Add up the scores of every text, which are in the same order under both types."""
    lengths = np.array([len(text.scores.losses) for text in found])
    losses = _losses(found)
    worse = losses - _losses(reference)
    bounds = ratio_bounds(worse, lengths)
    pairs = list(zip(found, reference, strict=True))
    return KvQuality(
        kv_type=kv_type,
        kv_nbytes=kv_nbytes,
        positions=int(lengths.sum()),
        perplexity=float(np.exp(losses.sum() / lengths.sum())),
        ratio=float(np.exp(worse.sum() / lengths.sum())),
        ratio_low=None if bounds is None else bounds[0],
        ratio_high=None if bounds is None else bounds[1],
        leading=sum(int((own.scores.leading == other.scores.leading).sum()) for own, other in pairs),
        divergence=float(sum(text.divergence for text in found) / lengths.sum()),
        texts=len(found),
        identical=sum(list(own.answer) == list(other.answer) for own, other in pairs),
    )


def ratio_bounds(
    worse: Sequence[float] | np.ndarray, lengths: Sequence[int] | np.ndarray
) -> tuple[float, float] | None:
    """Return the percentile bootstrap's interval of a ratio of perplexities; None for fewer than two texts.

    worse: by text, the sum of its tokens' differences in loss. Whole texts are drawn, since the tokens of one are no
    independent cases; the draws are always the same.
    """
    sums, counts = np.asarray(worse, np.float64), np.asarray(lengths, np.float64)
    if len(sums) < 2:
        return None
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    ratios = np.exp(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _losses(texts: Sequence[TextScores]) -> np.ndarray:
    return np.array([text.scores.losses.sum(dtype=np.float64) for text in texts])
