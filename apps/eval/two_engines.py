"""Lets two engines decode the same prompts, and each score what the other said. Shows and stores nothing.

One engine is open at a time, so that memory stays that of one: the first decodes and is closed, the second decodes and
scores the first's texts, then the first is opened again and scores the second's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from edgedecode import Stats
from edgedecode.decoding.loop import DecodeSetting, decode, prefill
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.sampling import Noise, Sampler
from edgedecode.decoding.weights import SamplingOptions
from edgedecode.engines.kernel_noise import Rescore, measure_noise, rescore
from edgedecode.errors import CapabilityError, ContextExceeded, InputError

from .tally import PromptEquality

__all__ = ["Comparison", "EncodedPrompt", "Opener", "Setting", "compare_engines"]

NOISE_ROOM = 64
"""Least positions behind a prompt for the noise to be measured on a text that follows it."""

Opener: TypeAlias = Callable[[str], AbstractContextManager[LanguageModel]]
"""Opens one model on the runtime of this name."""
Progress: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Shows the progress of a step with this many parts; call the result with how many are done."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model sees it; `name` tells it from the others in a report."""

    name: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """How the texts are decoded. trusted_noise: take the noise that a card states instead of measuring it."""

    max_tokens: int
    ends: frozenset[int]
    noise_positions: int
    trusted_noise: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every prompt's result, and the kernel noise of each engine, in logits."""

    prompts: tuple[PromptEquality, ...]
    noise: dict[str, float]


Texts: TypeAlias = list[list[int]]
"""The tokens after each prompt."""


def compare_engines(
    open_model: Opener,
    engines: Sequence[str],
    prompts: Sequence[EncodedPrompt],
    setting: Setting,
    *,
    progress: Progress,
) -> Comparison:
    """Compare the first two of `engines`. Raises what opening raises, InputError, ContextExceeded."""
    first, second = engines
    with open_model(second) as model:  # what cannot be opened is refused before anything is decoded
        _check_room(model, prompts, setting)
    texts: dict[str, Texts] = {}
    scores: dict[str, list[Rescore]] = {}
    noise: dict[str, float] = {}
    with open_model(first) as model:
        _check_room(model, prompts, setting)
        texts[first] = _decode_all(model, first, prompts, setting, progress=progress)
        noise[first] = _noise(model, first, prompts, setting, progress=progress)
    with open_model(second) as model:
        texts[second] = _decode_all(model, second, prompts, setting, progress=progress)
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


def _check_room(model: LanguageModel, prompts: Sequence[EncodedPrompt], setting: Setting) -> None:
    """Raise ContextExceeded for a prompt behind which the model has no room, InputError for one of no tokens."""
    if model.card.token_ids is not None:
        raise CapabilityError(f"the model {model.card.name} has a vocabulary of its own: it cannot be compared here")
    for prompt in prompts:
        if not prompt.tokens:
            raise InputError(f"the prompt {prompt.name!r} has no tokens: leave it out")
        if len(prompt.tokens) + setting.max_tokens >= model.card.context:
            raise ContextExceeded(
                f"the prompt {prompt.name!r} has {len(prompt.tokens)} tokens, which with {setting.max_tokens} more "
                f"exceed the model's context of {model.card.context}: leave it out, or lower -n"
            )


def _decode_all(
    model: LanguageModel, engine: str, prompts: Sequence[EncodedPrompt], setting: Setting, *, progress: Progress
) -> Texts:
    texts: Texts = []
    with progress(f"{engine} decodes", len(prompts)) as advance:
        for prompt in prompts:
            texts.append(_continuation(model, prompt.tokens, setting))
            advance(1)
    return texts


def _continuation(model: LanguageModel, prompt: Sequence[int], setting: Setting) -> list[int]:
    """Decode greedily with our own loop, every row in a pass of its own: the kernel that re-scoring uses too."""
    state = model.new_state(len(prompt) + setting.max_tokens + 1)
    tokens = list(prompt)
    sampler = Sampler(SamplingOptions(), vocabulary_size=model.card.vocabulary_size)
    greedy = DecodeSetting(sampler=sampler, noise=Noise(0), ends=setting.ends)
    try:
        prefill(model, state, prompt[:-1])
        for _ in decode(model, state, tokens=tokens, max_tokens=setting.max_tokens, setting=greedy, stats=Stats()):
            pass
    finally:
        state.close()
    return tokens[len(prompt) :]


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
    """Return the noise that the pack states, or measure it on text the engine writes after these prompts."""
    if setting.trusted_noise and model.card.kernel_noise is not None:
        return model.card.kernel_noise
    room = model.card.context - NOISE_ROOM
    chosen = [prompt.tokens for prompt in prompts if len(prompt.tokens) < room] or [prompts[0].tokens[: room // 2]]
    with progress(f"{engine}: kernel noise", setting.noise_positions) as advance:
        measured = measure_noise(model, chosen, ends=setting.ends, positions=setting.noise_positions, progress=advance)
    return measured.percentile
