"""Quality of a KV cache type: scores of the same texts with it and with the reference type, summed up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.engines.text_scores import Scores
from edgedecode.pack.engine_equality import CONFIDENCE, Rate

RESAMPLES = 2000
"""Bootstrap resamples. More make the bounds steadier, and take longer."""


@dataclass(frozen=True, slots=True)
class TextScores:
    """One text's scores and greedy answer."""

    scores: Scores
    divergence: float
    """Nats by which its rows diverge from the reference's, summed over the scored tokens."""
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class KvQuality:
    """One KV type on one engine, compared with the reference type on the same texts."""

    kv_type: str
    kv_nbytes: int
    """Bytes of one position's keys and values."""
    positions: int
    """Tokens that were scored."""
    perplexity: float
    ratio: float
    """The perplexity divided by the reference's."""
    ratio_low: float | None
    ratio_high: float | None
    """Bounds of 95% of the resampled sets of texts; None if there is only one text."""
    leading: int
    """Positions with the reference's top token."""
    divergence: float
    """Mean nats from the reference's rows per position, over the likeliest ids and one class for all others."""
    texts: int
    identical: int
    """Greedy answers equal to the reference's, token for token."""

    @property
    def leading_rate(self) -> Rate:
        return Rate(self.leading, self.positions)

    @property
    def identical_rate(self) -> Rate:
        return Rate(self.identical, self.texts)


def quality_of(
    found: Sequence[TextScores], reference: Sequence[TextScores], *, kv_type: str, kv_nbytes: int
) -> KvQuality:
    """Sum up the scores of all texts. Both sequences hold the texts in the same order."""
    lengths = np.array([len(text.scores.losses) for text in found])
    losses = _losses(found)
    excess = losses - _losses(reference)
    bounds = ratio_bounds(excess, lengths)
    pairs = list(zip(found, reference, strict=True))
    return KvQuality(
        kv_type=kv_type,
        kv_nbytes=kv_nbytes,
        positions=int(lengths.sum()),
        perplexity=float(np.exp(losses.sum() / lengths.sum())),
        ratio=float(np.exp(excess.sum() / lengths.sum())),
        ratio_low=None if bounds is None else bounds[0],
        ratio_high=None if bounds is None else bounds[1],
        leading=sum(int((own.scores.leading == other.scores.leading).sum()) for own, other in pairs),
        divergence=float(sum(text.divergence for text in found) / lengths.sum()),
        texts=len(found),
        identical=sum(list(own.answer) == list(other.answer) for own, other in pairs),
    )


def ratio_bounds(
    excess: Sequence[float] | np.ndarray, lengths: Sequence[int] | np.ndarray
) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of a perplexity ratio; None for fewer than two texts.

    excess: by text, the sum of its tokens' differences in loss. Full texts are resampled, since the tokens of one text
    are not independent. The resampling has a fixed seed.
    """
    sums, counts = np.asarray(excess, np.float64), np.asarray(lengths, np.float64)
    if len(sums) < 2:
        return None
    resampled = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    ratios = np.exp(sums[resampled].sum(axis=1) / counts[resampled].sum(axis=1))
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _losses(texts: Sequence[TextScores]) -> np.ndarray:
    return np.array([text.scores.losses.sum(dtype=np.float64) for text in texts])
