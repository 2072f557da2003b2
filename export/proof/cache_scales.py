"""Finds the scale of each channel of keys and values, from what a float cache holds after texts of the model's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, cast

import numpy as np

from edgedecode.decoding.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel

from ..graph.passes.kv8 import CacheScales

__all__ = ["calibrate_cache"]

LENGTH = 64
"""Tokens the model writes behind each prompt: its own text is what the cache mostly holds."""
MARGIN = 1.5
"""Room above the largest magnitude seen: a value beyond it is cut. Error of the bundled target's logits on 717 held-out
tokens, by margin: 1.0 2.2%, 1.1 1.7%, 1.25 1.4%, 1.5 1.2%, 2.0 1.4%."""
_LEVELS = 127
_LEAST = 1e-4
"""Least scale of a channel, as a share of its layer's largest: a channel that was silent may speak."""


class _FloatCache(Protocol):
    """What a state of the ONNX runtime shows beside the protocol: [2 · layers, 1, KV heads, slots, head size]."""

    @property
    def cache(self) -> FloatArray: ...


def calibrate_cache(
    model: LanguageModel, prompts: Sequence[Sequence[int]], *, ends: Collection[int]
) -> tuple[CacheScales, ...]:
    """Return each layer's scales. The rotation lies before the cache, so rotated keys are what is measured."""
    largest: FloatArray | None = None
    for prompt in prompts:
        seen = _largest(model, prompt, ends=ends)
        largest = seen if largest is None else np.maximum(largest, seen)
    assert largest is not None
    floor = largest.max(axis=(1, 2), keepdims=True) * _LEAST + np.finfo(np.float32).tiny * _LEVELS
    scales = np.asarray(np.maximum(largest, floor) * np.float32(MARGIN / _LEVELS), np.float32)
    return tuple(CacheScales(key, value) for key, value in zip(scales[0::2], scales[1::2], strict=True))


def _largest(model: LanguageModel, prompt: Sequence[int], *, ends: Collection[int]) -> FloatArray:
    """Return the largest magnitudes in the cache after the prompt and an answer, [2 · layers, KV heads, head size]."""
    state = model.new_state(min(model.card.context, len(prompt) + LENGTH))
    try:
        tokens = list(prompt)
        while True:
            logits = model.forward(tokens, state).logits[0, : model.card.vocabulary_size]
            state.keep(range(len(tokens)))
            tokens = [int(logits.argmax())]
            if state.length == state.capacity or tokens[0] in ends:
                cache = cast(_FloatCache, state).cache
                return np.asarray(np.abs(cache[:, 0, :, : state.length]).max(axis=2), np.float32)
    finally:
        state.close()
