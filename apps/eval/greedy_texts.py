"""Greedy answers by plain decoding: the texts on which engines and KV types are compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from edgedecode import Stats
from edgedecode.decoding.loop import DecodeSetting, decode, prefill
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import CapabilityError, ContextExceeded, InputError
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions

from ..terminal import tracked

Texts: TypeAlias = list[list[int]]
"""The tokens after each prompt."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's tokens; `name` identifies it in a report."""

    name: str
    tokens: tuple[int, ...]


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
