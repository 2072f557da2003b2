"""The result of comparing two engines on one model, as a manifest stores it: rates with confidence bounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from edgedecode.typed_json import Count, Finite, Positive

CONFIDENCE = 0.95
"""Two-sided coverage of the bounds; Clopper-Pearson guarantees at least this for every rate and total."""
_HALVINGS = 60
"""Bisection steps on the interval from 0 to 1: enough for float64 precision."""


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
        """Find by bisection the share at which `count` or fewer cases have this cumulative probability."""
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
    """Render a share as a percentage with two significant digits of it, or of its complement near 100%."""
    rest = min(share, 1 - share)
    decimals = max(0, 1 - math.floor(math.log10(100 * rest))) if 0 < rest < 0.1 else 0
    text = f"{100 * share:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


EXPECTED_BEYOND = 0.001
"""The share of tokens whose gap may exceed the kernel noise, which is a 99.9th percentile."""


@dataclass(frozen=True, slots=True)
class Equality:
    """The latest comparison of two engines on one model, as the manifest stores it: no date, no time, no machine."""

    engines: Mapping[str, str]
    """Runtime → its versions in the comparison."""
    prompts: Positive
    prompts_digest: str
    """sha256, in hex, of the prompts' token ids."""
    max_tokens: Positive
    kv_type: str = field(default="", kw_only=True)
    """The KV cache type requested; empty: each engine's default."""
    tokens: Count
    """Tokens decoded by the two engines in total; each was scored by the other engine."""
    hits: Count
    """Tokens that were the arg-max in both."""
    divergent: Count
    """Prompts whose two texts differ."""
    beyond: Count
    """Prompts with a gap above the noise of the noisier engine."""
    beyond_tokens: Count = field(default=-1, kw_only=True)
    """Tokens with a gap above that noise. Missing in older results, as is `untied`: both then default to `beyond`."""
    untied: Count = field(default=-1, kw_only=True)
    """Tokens above the noise that are not a near tie: far above the noise, or not finite."""
    largest_gap: Finite | None = field(default=None, kw_only=True)
    """In logits; None: a score was not finite."""
    noise: Mapping[str, Finite | None]
    """Runtime → kernel noise in logits: the difference between its one-row and many-row kernels. None: not finite."""

    def __post_init__(self) -> None:
        for name in ("beyond_tokens", "untied"):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, self.beyond)
        most = max(self.hits, self.beyond_tokens, self.untied)
        if most > self.tokens or max(self.divergent, self.beyond) > self.prompts:
            raise ValueError("it counts more tokens or prompts than there are")

    @property
    def divergent_rate(self) -> Rate:
        """The share of prompts whose two texts differ."""
        return Rate(self.divergent, self.prompts)

    @property
    def beyond_rate(self) -> Rate:
        """The share of tokens whose gap is above the noise."""
        return Rate(self.beyond_tokens, max(self.tokens, 1))

    @property
    def equal(self) -> bool:
        """Whether every token is the arg-max in both engines or a near tie, with few enough above the noise.

        Too many: the lower bound of their rate exceeds the 0.1% that a 99.9th percentile leaves out.
        """
        return not self.untied and self.beyond_rate.low <= EXPECTED_BEYOND
