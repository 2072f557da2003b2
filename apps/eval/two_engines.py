"""Decodes the same prompts on two engines and lets each score the other's texts.

Only one engine is open at a time, to save memory: the first decodes, the second decodes and scores the first's texts,
then the first is opened again and scores the second's.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.kernel_noise import POSITIONS, Rescore, measure_noise, rescore

from ..terminal import progress
from .greedy_texts import EncodedPrompt, Texts, check_room, decode_all
from .tally import PromptEquality

NOISE_ROOM = 64
"""Positions that a prompt must leave in the context for noise to be measured on its continuation."""

Opener: TypeAlias = Callable[[str], AbstractContextManager[LanguageModel]]
"""Opens one model on the named runtime."""


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
    scores = []
    with progress(what, len(prompts)) as advance:
        for prompt, text in zip(prompts, texts, strict=True):
            scores.append(rescore(model, [*prompt.tokens, *text], prompt_tokens=len(prompt.tokens)))
            advance()
    return scores


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
