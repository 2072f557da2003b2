"""Decides whether two engines are equal, from each engine's scores of the text that the other decoded.

Each token of an engine's greedy text is that engine's arg-max. If the engines are equal, the token is the other's
arg-max too, or a near tie with a gap below kernel noise. The noise is that of the noisier engine: either one's rounding
may decide a tie, and an engine whose kernels all round alike (llama.cpp on a processor) has no noise itself. The noise
is a percentile, so a few near ties exceed it; their rate is tested.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedecode.engines.kernel_noise import Rescore
from edgedecode.pack.engine_equality import Equality

NEAR_TIE = 4.0
"""Largest gap of a near tie, in multiples of the noise. Of normally distributed numbers of which one in 1,000 exceeds
the noise, one in 10^38 exceeds this."""


@dataclass(frozen=True, slots=True)
class PromptEquality:
    """One prompt: each engine's score of the other's text, by name, and whether the two texts differ."""

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
        """In logits; infinite if a score is not a number."""
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
    """Sum up the prompts' results. noise: in logits, by engine; if one is not a number, 0 is used for all."""
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
    """Return the noisier engine's noise; 0 if one is not a number, so that every gap counts."""
    return max(noise.values()) if all(math.isfinite(value) for value in noise.values()) else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
