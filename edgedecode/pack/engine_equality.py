"""What a comparison of two engines found, as a pack's manifest keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.errors import ManifestError
from edgedecode.rate import Rate

from .json_fields import Fields

__all__ = ["EXPECTED_BEYOND", "Equality"]

EXPECTED_BEYOND = 0.001
"""The share of tokens whose gap may lie above kernel noise, which is a 99.9th percentile."""


@dataclass(frozen=True, slots=True)
class Equality:
    """The last comparison of two engines on one model, as the manifest keeps it: no date, no time, no machine."""

    engines: Mapping[str, str]
    """Runtime → the versions it ran with."""
    prompts: int
    prompts_digest: str
    """sha256, in hex, of the prompts' token ids."""
    max_tokens: int
    kv_type: str
    """As asked for; empty: what each engine does by itself."""
    tokens: int
    """Tokens decoded by both engines together; each was scored by the other."""
    hits: int
    """How many of them were the arg-max in both."""
    divergent: int
    """Prompts whose two texts differ."""
    beyond: int
    """Prompts with a gap above the noise of the noisier engine."""
    beyond_tokens: int
    """Tokens with such a gap."""
    untied: int
    """Those of them that are no near tie: far above the noise, or no number."""
    largest_gap: float | None
    """In logits; None: a score that was no number."""
    noise: Mapping[str, float | None]
    """Runtime → its kernel noise, in logits: what its own one-row and many-row kernels differ by. None: no number."""

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

    @classmethod
    def of(cls, fields: Fields) -> Equality:
        """Check a parsed block field by field. Raises ManifestError naming the field."""
        engines, noise = fields.child("engines"), fields.child("noise")
        beyond = fields.integer("beyond", low=0)
        beyond_tokens, untied = (fields.optional_integer(name) for name in ("beyond_tokens", "untied"))
        found = cls(
            engines={name: engines.text(name) for name in engines.values},
            prompts=fields.integer("prompts", low=1),
            prompts_digest=fields.text("prompts_digest"),
            max_tokens=fields.integer("max_tokens", low=1),
            kv_type=fields.optional_text("kv_type") or "",
            tokens=fields.integer("tokens", low=0),
            hits=fields.integer("hits", low=0),
            divergent=fields.integer("divergent", low=0),
            beyond=beyond,
            beyond_tokens=beyond if beyond_tokens is None else beyond_tokens,
            untied=beyond if untied is None else untied,  # an older result: one gap above the noise was too many
            largest_gap=fields.optional_number("largest_gap"),
            noise={name: noise.optional_number(name) for name in noise.values},
        )
        most = max(found.hits, found.beyond_tokens, found.untied)
        if most > found.tokens or max(found.divergent, found.beyond) > found.prompts:
            raise ManifestError(f"{fields.where} counts more tokens or prompts than there are")
        return found
