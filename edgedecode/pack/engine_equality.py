"""What a comparison of two engines found, as a pack's manifest keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedecode.rate import Rate
from edgedecode.typed_json import Count, Finite, Positive

__all__ = ["EXPECTED_BEYOND", "Equality"]

EXPECTED_BEYOND = 0.001
"""The share of tokens whose gap may lie above kernel noise, which is a 99.9th percentile."""


@dataclass(frozen=True, slots=True)
class Equality:
    """The last comparison of two engines on one model, as the manifest keeps it: no date, no time, no machine."""

    engines: Mapping[str, str]
    """Runtime → the versions it ran with."""
    prompts: Positive
    prompts_digest: str
    """sha256, in hex, of the prompts' token ids."""
    max_tokens: Positive
    kv_type: str = field(default="", kw_only=True)
    """As asked for; empty: what each engine does by itself."""
    tokens: Count
    """Tokens decoded by both engines together; each was scored by the other."""
    hits: Count
    """How many of them were the arg-max in both."""
    divergent: Count
    """Prompts whose two texts differ."""
    beyond: Count
    """Prompts with a gap above the noise of the noisier engine."""
    beyond_tokens: Count = field(default=-1, kw_only=True)
    """Tokens with such a gap. Older results tell neither this nor the next: they count as many as prompts."""
    untied: Count = field(default=-1, kw_only=True)
    """Those of them that are no near tie: far above the noise, or no number."""
    largest_gap: Finite | None = field(default=None, kw_only=True)
    """In logits; None: a score that was no number."""
    noise: Mapping[str, Finite | None]
    """Runtime → its kernel noise, in logits: what its own one-row and many-row kernels differ by. None: no number."""

    def __post_init__(self) -> None:
        for name in ("beyond_tokens", "untied"):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, self.beyond)
        most = max(self.hits, self.beyond_tokens, self.untied)
        if most > self.tokens or max(self.divergent, self.beyond) > self.prompts:
            raise ValueError("it counts more tokens or prompts than there are")

    @property
    def divergent_rate(self) -> Rate:
        """How often two texts differ at all."""
        return Rate(self.divergent, self.prompts)

    @property
    def beyond_rate(self) -> Rate:
        """How often a token's gap lies above the noise."""
        return Rate(self.beyond_tokens, max(self.tokens, 1))

    @property
    def equal(self) -> bool:
        """Whether all tokens are the arg-max in both engines or near ties, no more of them above the noise than may be.

        More than may be: their rate's lower bound is above what a 99.9th percentile leaves out.
        """
        return not self.untied and self.beyond_rate.low <= EXPECTED_BEYOND
