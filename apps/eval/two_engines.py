"""Decodes the same prompts on two engines and lets each score the other's texts.

Only one engine is open at a time, to save memory: the first decodes, the second decodes and scores the first's texts,
then the first is opened again and scores the second's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.kernel_noise import Rescore, measure_noise, rescore

from .greedy_texts import EncodedPrompt, Progress, Texts, check_room, decode_all
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
    noise_positions: int
    trusted_noise: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every prompt's result, and the kernel noise of each engine, in logits."""

    prompts: tuple[PromptEquality, ...]
    noise: dict[str, float]


def compare_engines(
    open_model: Opener,
    engines: Sequence[str],
    prompts: Sequence[EncodedPrompt],
    setting: Setting,
    *,
    progress: Progress,
) -> Comparison:
    """Compare the two `engines`. Raises what opening raises, InputError, ContextExceeded."""
    first, second = engines
    with open_model(second) as model:  # fails before anything is decoded if it cannot be opened
        check_room(model, prompts, max_tokens=setting.max_tokens)
    texts: dict[str, Texts] = {}
    scores: dict[str, list[Rescore]] = {}
    noise: dict[str, float] = {}
    with open_model(first) as model:
        check_room(model, prompts, max_tokens=setting.max_tokens)
        texts[first] = _answers(model, first, prompts, setting, progress=progress)
        noise[first] = _noise(model, first, prompts, setting, progress=progress)
    with open_model(second) as model:
        texts[second] = _answers(model, second, prompts, setting, progress=progress)
        noise[second] = _noise(model, second, prompts, setting, progress=progress)
        scores[second] = _rescore_all(model, second, prompts, texts[first], progress=progress)
    with open_model(first) as model:
        scores[first] = _rescore_all(model, first, prompts, texts[second], progress=progress)
    found = [
        PromptEquality(
            prompt.name,
            scores={first: scores[first][index], second: scores[second][index]},
            divergent=texts[first][index] != texts[second][index],
        )
        for index, prompt in enumerate(prompts)
    ]
    return Comparison(tuple(found), noise)


def _answers(
    model: LanguageModel, engine: str, prompts: Sequence[EncodedPrompt], setting: Setting, *, progress: Progress
) -> Texts:
    decoding = progress(f"{engine} decodes", len(prompts))
    return decode_all(model, prompts, max_tokens=setting.max_tokens, ends=setting.ends, progress=decoding)


def _rescore_all(
    model: LanguageModel, engine: str, prompts: Sequence[EncodedPrompt], texts: Texts, *, progress: Progress
) -> list[Rescore]:
    scores = []
    with progress(f"{engine} scores the other", len(prompts)) as advance:
        for prompt, text in zip(prompts, texts, strict=True):
            scores.append(rescore(model, [*prompt.tokens, *text], prompt_tokens=len(prompt.tokens)))
            advance(1)
    return scores


def _noise(
    model: LanguageModel, engine: str, prompts: Sequence[EncodedPrompt], setting: Setting, *, progress: Progress
) -> float:
    """Return the noise that the pack states, or measure it on the engine's continuations of these prompts."""
    if setting.trusted_noise and model.card.kernel_noise is not None:
        return model.card.kernel_noise
    room = model.card.context - NOISE_ROOM
    chosen = [prompt.tokens for prompt in prompts if len(prompt.tokens) < room] or [prompts[0].tokens[: room // 2]]
    with progress(f"{engine}: kernel noise", setting.noise_positions) as advance:
        measured = measure_noise(model, chosen, ends=setting.ends, positions=setting.noise_positions, progress=advance)
    return measured.percentile
