"""What each column of a projection's weight carries: the mean square of its input, on text the model itself writes.

The text comes from the exported graph, the inputs from transformers' modules with the original weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.kernel_noise import draw

from ..checks.reference import Reference
from ..graph.recipe import EMBEDDING, HEAD, projection_name

if TYPE_CHECKING:
    import torch

__all__ = ["TOKENS", "Importance", "Tokens", "find_importance", "hidden_states", "sample_texts"]

Importance: TypeAlias = Mapping[str, FloatArray]
"""`projection_name` → float32 [columns]."""
Tokens: TypeAlias = Sequence[Sequence[int]]
"""Texts in a model's own ids."""

TOKENS = 4096
"""Length of the text that a model writes to be calibrated on."""
_SEGMENT = 250
_PASS = 1024
"""Most tokens of one pass of the reference: attention is quadratic, and every pass reads all weights."""


def sample_texts(
    model: LanguageModel,
    prompts: Tokens,
    *,
    ends: Collection[int],
    tokens: int = TOKENS,
    progress: Callable[[int], None] = lambda amount: None,
) -> list[tuple[int, ...]]:
    """Return prompts, one after another, with the model's replies, until these have `tokens` tokens.

    Sampled at temperature 1 with a fixed seed; a reply ends with an end-of-sequence token, included, or after 250.
    """
    rng = np.random.default_rng(0)
    found: list[tuple[int, ...]] = []
    done = 0
    for prompt in cycle(prompts):
        room = min(_SEGMENT, tokens - done, model.card.context - len(prompt))
        reply = _sample(model, prompt, length=room, ends=ends, rng=rng)
        found.append((*prompt, *reply))
        done += len(reply)
        progress(len(reply))
        if done >= tokens:
            break
    return found


def find_importance(
    reference: Reference, texts: Tokens, *, tied: bool, progress: Callable[[int], None] = lambda amount: None
) -> Importance:
    """Return the mean squares of every projection's input columns, and the head's; `tied`: the embedding's too.

    Short texts share a pass and do not see each other.
    """
    import torch

    sums: dict[str, torch.Tensor] = {}

    def collect(name: str) -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...]], None]:
        def before(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
            _add(sums, name, arguments[0])

        return before

    original = reference.of_originals()
    count = 0
    with ExitStack() as hooks:
        for name, module in original.network.model.named_modules(prefix="model"):
            if isinstance(module, torch.nn.Linear):
                hooks.callback(module.register_forward_pre_hook(collect(name)).remove)
        for hidden in hidden_states(original, texts):
            _add(sums, HEAD, torch.from_numpy(hidden))
            count += len(hidden)
            progress(len(hidden))
    shared = {projection_name(name): np.asarray(total.numpy() / count, np.float32) for name, total in sums.items()}
    return shared | ({EMBEDDING: shared[HEAD]} if tied else {})


def hidden_states(reference: Reference, texts: Tokens) -> Iterator[FloatArray]:
    """Yield the last hidden states of texts, [tokens of a pass, hidden size]; texts of a pass do not see each other."""
    for batch in _batches(texts):
        lengths = [len(text) for text in batch]
        owner = np.repeat(np.arange(len(batch)), lengths)
        visible = np.tri(len(owner), dtype=np.bool_) & (owner[:, None] == owner[None, :])
        positions = [position for length in lengths for position in range(length)]
        tokens = [token for text in batch for token in text]
        yield reference.hidden(tokens, visible=visible, positions=positions)


def _add(sums: dict[str, torch.Tensor], name: str, inputs: torch.Tensor) -> None:
    squares = inputs.reshape(-1, inputs.shape[-1]).double().square().sum(0)
    sums[name] = sums[name] + squares if name in sums else squares


def _batches(texts: Tokens) -> Iterator[Tokens]:
    """Cut texts to the length of a pass, and put together what fits into one."""
    batch: list[Sequence[int]] = []
    for text in texts:
        for start in range(0, len(text), _PASS):
            piece = text[start : start + _PASS]
            if batch and sum(map(len, batch)) + len(piece) > _PASS:
                yield batch
                batch = []
            batch.append(piece)
    if batch:
        yield batch


def _sample(
    model: LanguageModel, prompt: Sequence[int], *, length: int, ends: Collection[int], rng: np.random.Generator
) -> list[int]:
    reply: list[int] = []
    state = model.new_state(len(prompt) + length)
    try:
        tokens = prompt
        while True:
            row = model.forward(tokens, state).logits[0, : model.card.vocabulary_size]
            state.keep(range(len(tokens)))
            reply.append(draw(row, rng.random()))
            if len(reply) >= length or reply[-1] in ends:
                return reply
            tokens = reply[-1:]
    finally:
        state.close()
