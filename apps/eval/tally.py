"""Do two engines say the same? Adds up how each scored the text that the other decoded.

Every token of an engine's greedy text is that engine's own arg-max. It is the other's too, or a near tie whose gap lies
below kernel noise, or the engines compute different things. The noise that counts is that of the noisier engine: either
one's rounding may turn a tie, and an engine whose kernels all round alike (llama.cpp on a processor) has none itself.
The noise is a percentile, so that a few near ties lie above it: they are counted, and their rate is judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedecode.engines.kernel_noise import Rescore
from edgedecode.pack.engine_equality import Equality

__all__ = ["PromptEquality", "equality_of", "noisier"]

NEAR_TIE = 4.0
"""Times the noise: no near tie is farther apart. Of numbers with a normal distribution one in 10^38 is so far out where
one in 1,000 is beyond the noise."""


@dataclass(frozen=True, slots=True)
class PromptEquality:
    """One prompt: how each engine, by name, scores the other's text, and whether the two texts differ at all."""

    name: str
    scores: Mapping[str, Rescore]
    divergent: bool

    @property
    def positions(self) -> int:
        return sum(score.positions for score in self.scores.values())

    @property
    def hits(self) -> int:
        return sum(score.hits for score in self.scores.values())

    @property
    def largest_gap(self) -> float:
        """In logits; infinite where a score was no number."""
        return max(score.largest_gap for score in self.scores.values())

    def beyond(self, noise: float) -> int:
        """Count the tokens whose gap is above `noise`, in logits."""
        return sum(not gap <= noise for score in self.scores.values() for gap in score.gaps)


def equality_of(
    prompts: Sequence[PromptEquality],
    *,
    engines: Mapping[str, str],
    noise: Mapping[str, float],
    prompts_digest: str,
    max_tokens: int,
    kv_type: str = "",
) -> Equality:
    """Add up what is known of every prompt; `noise` in logits by engine, which counts as 0 where it is not a number."""
    most = noisier(noise)
    beyond = [prompt.beyond(most) for prompt in prompts]
    return Equality(
        engines=dict(engines),
        prompts=len(prompts),
        prompts_digest=prompts_digest,
        max_tokens=max_tokens,
        kv_type=kv_type,
        tokens=sum(prompt.positions for prompt in prompts),
        hits=sum(prompt.hits for prompt in prompts),
        divergent=sum(prompt.divergent for prompt in prompts),
        beyond=sum(count > 0 for count in beyond),
        beyond_tokens=sum(beyond),
        untied=sum(prompt.beyond(NEAR_TIE * most) for prompt in prompts),
        largest_gap=_finite(max(prompt.largest_gap for prompt in prompts)),
        noise={engine: _finite(value) for engine, value in noise.items()},
    )


def noisier(noise: Mapping[str, float]) -> float:
    """Return the noisier engine's noise; 0, which excuses nothing, where one's is not a number."""
    return max(noise.values()) if all(math.isfinite(value) for value in noise.values()) else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
