"""Compares two engines: each decodes the same prompts greedily, and scores the text that the other decoded.

Only one engine is open at a time, to save memory. A token of one engine's text is the other's arg-max too, or a near
tie with a gap below the kernel noise of the noisier engine, since either one's rounding may decide a tie. The noise is
a percentile, so a few near ties exceed it; their rate is tested.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from edgedecode import Stats
from edgedecode.decoding.loop import DecodeSetting, decode, prefill
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.kernel_noise import POSITIONS, Rescore, measure_noise, rescore
from edgedecode.errors import CapabilityError, ContextExceeded, InputError
from edgedecode.pack.engine_equality import Equality
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions

from ..terminal import progress, tracked

Texts: TypeAlias = list[list[int]]
"""The tokens after each prompt."""
NEAR_TIE = 4.0
"""Largest gap of a near tie, in multiples of the noise. Of normally distributed numbers of which one in 1,000 exceeds
the noise, one in 10^38 exceeds this."""

NOISE_ROOM = 64
"""Positions that a prompt must leave in the context for noise to be measured on its continuation."""

Opener: TypeAlias = Callable[[str], AbstractContextManager[LanguageModel]]
"""Opens one model on the named runtime."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's tokens; `name` identifies it in a report."""

    name: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptEquality:
    """One prompt: each engine's score of the other's text, by name, and whether the two texts differ."""

    name: str
    scores: Mapping[str, Rescore]
    divergent: bool

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
    scores = [score for prompt in prompts for score in prompt.scores.values()]
    beyond = [prompt.beyond(most) for prompt in prompts]
    return Equality(
        engines=dict(engines),
        prompts=len(prompts),
        prompts_digest=prompts_digest,
        max_tokens=max_tokens,
        kv_type=kv_type,
        tokens=sum(score.positions for score in scores),
        hits=sum(score.hits for score in scores),
        divergent=sum(prompt.divergent for prompt in prompts),
        beyond=sum(count > 0 for count in beyond),
        beyond_tokens=sum(beyond),
        untied=sum(prompt.beyond(NEAR_TIE * most) for prompt in prompts),
        largest_gap=_finite(max(score.largest_gap for score in scores)),
        noise={engine: _finite(value) for engine, value in noise.items()},
    )


def noisier(noise: Mapping[str, float]) -> float:
    """Return the noisier engine's noise; 0 if one is not a number, so that every gap counts."""
    return max(noise.values()) if all(math.isfinite(value) for value in noise.values()) else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Setting:
    """How the texts are decoded. trusted_noise: use the noise that the model's card states instead of measuring it."""

    max_tokens: int
    ends: frozenset[int]
    trusted_noise: bool = True
    noise_positions: int = POSITIONS


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every prompt's result, and the kernel noise of each engine, in logits."""

    prompts: tuple[PromptEquality, ...]
    noise: dict[str, float]


def compare_engines(
    open_model: Opener, engines: Sequence[str], prompts: Sequence[EncodedPrompt], setting: Setting, *, role: str
) -> Comparison:
    """Compare the two `engines`. role: for the progress. Raises what opening raises, InputError, ContextExceeded."""
    first, second = engines
    texts: dict[str, Texts] = {}
    noise: dict[str, float] = {}

    def answer(engine: str, model: LanguageModel) -> None:
        most, what = setting.max_tokens, f"{role}: {engine} decodes"
        check_room(model, prompts, max_tokens=most)
        texts[engine] = decode_all(model, prompts, max_tokens=most, ends=setting.ends, what=what)
        noise[engine] = _noise(model, prompts, setting, what=f"{role}: kernel noise of {engine}")

    with open_model(second) as model:  # fails before anything is decoded if it cannot be opened
        check_room(model, prompts, max_tokens=setting.max_tokens)
    with open_model(first) as model:
        answer(first, model)
    with open_model(second) as model:
        answer(second, model)
        by_second = _rescore_all(model, prompts, texts[first], what=f"{role}: {second} scores the other")
    with open_model(first) as model:
        by_first = _rescore_all(model, prompts, texts[second], what=f"{role}: {first} scores the other")
    scores = [{first: one, second: other} for one, other in zip(by_first, by_second, strict=True)]
    divergent = [one != other for one, other in zip(texts[first], texts[second], strict=True)]
    found = zip(prompts, scores, divergent, strict=True)
    return Comparison(tuple(PromptEquality(prompt.name, score, differs) for prompt, score, differs in found), noise)


def _rescore_all(model: LanguageModel, prompts: Sequence[EncodedPrompt], texts: Texts, *, what: str) -> list[Rescore]:
    return [
        rescore(model, [*prompt.tokens, *text], prompt_tokens=len(prompt.tokens))
        for prompt, text in tracked(zip(prompts, texts, strict=True), what)
    ]


def _noise(model: LanguageModel, prompts: Sequence[EncodedPrompt], setting: Setting, *, what: str) -> float:
    """Return the noise that the pack states, or measure it on the engine's continuations of these prompts."""
    if setting.trusted_noise and model.card.kernel_noise is not None:
        return model.card.kernel_noise
    room = model.card.context - NOISE_ROOM
    chosen = [prompt.tokens for prompt in prompts if len(prompt.tokens) < room] or [prompts[0].tokens[: room // 2]]
    with progress(what, setting.noise_positions) as advance:
        return measure_noise(
            model, chosen, ends=setting.ends, positions=setting.noise_positions, progress=advance
        ).percentile


def check_room(model: LanguageModel, prompts: Sequence[EncodedPrompt], *, max_tokens: int) -> None:
    """Raise ContextExceeded if a prompt and its answer exceed the context, InputError if a prompt has no tokens."""
    if model.card.token_ids is not None:
        raise CapabilityError(f"the model {model.card.name} has a vocabulary of its own and cannot be compared")
    for prompt in prompts:
        if not prompt.tokens:
            raise InputError(f"the prompt {prompt.name!r} has no tokens: leave it out")
        if len(prompt.tokens) + max_tokens >= model.card.context:
            found = f"{prompt.name!r} and {max_tokens} more, {len(prompt.tokens) + max_tokens} tokens"
            raise ContextExceeded.of(found, model.card.context, remedy="leave it out, or lower -n")


def decode_all(
    model: LanguageModel, prompts: Sequence[EncodedPrompt], *, max_tokens: int, ends: frozenset[int], what: str
) -> Texts:
    """Answer each prompt greedily. what: for the progress."""
    return [_continuation(model, each.tokens, max_tokens=max_tokens, ends=ends) for each in tracked(prompts, what)]


def _continuation(model: LanguageModel, prompt: Sequence[int], *, max_tokens: int, ends: frozenset[int]) -> list[int]:
    """Decode with edgedecode's loop, one row per pass, so that it runs the same kernels as re-scoring."""
    state = model.new_state(len(prompt) + max_tokens + 1)
    tokens = list(prompt)
    sampler = Sampler(SamplingOptions(), vocabulary_size=model.card.vocabulary_size)
    greedy = DecodeSetting(sampler=sampler, noise=Noise(0), ends=ends)
    try:
        prefill(model, state, prompt[:-1])
        for _ in decode(model, state, tokens=tokens, max_tokens=max_tokens, setting=greedy, stats=Stats()):
            pass
    finally:
        state.close()
    return tokens[len(prompt) :]
