"""How well a model foretells texts, and how often it agrees with another one. Reads each text in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.decoding.arrays import FloatArray, IntArray
from edgedecode.decoding.model import LanguageModel

from .texts import ScoredText

__all__ = ["Scores", "score_texts"]


@dataclass(frozen=True, slots=True)
class Scores:
    """Of every scored token, in order: its loss in nats, float32, and the id that the model would have said."""

    losses: FloatArray
    leading: IntArray

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.losses.mean(dtype=np.float64)))

    def agreement(self, other: Scores) -> float:
        """Return the share of tokens at which both lead with the same id."""
        return float((self.leading == other.leading).mean())


def score_texts(
    model: LanguageModel, texts: Sequence[ScoredText], *, progress: Callable[[int], None] = lambda amount: None
) -> Scores:
    """Score the tokens from each text's `start` on, padding rows of the vocabulary left out."""
    losses: list[FloatArray] = []
    leading: list[IntArray] = []
    for text in texts:
        rows = _rows(model, text)
        expected = np.asarray(text.tokens[text.start :])
        highest = rows.max(axis=1)
        sums = np.exp(rows - highest[:, None]).sum(axis=1, dtype=np.float64)
        losses.append(np.asarray(np.log(sums) + highest - rows[np.arange(len(rows)), expected], np.float32))
        leading.append(np.asarray(rows.argmax(axis=1), np.int64))
        progress(text.scored)
    return Scores(np.concatenate(losses), np.concatenate(leading))


def _rows(model: LanguageModel, text: ScoredText) -> FloatArray:
    """Return the logits after each token but the last, from the one before `start` on."""
    state = model.new_state(len(text.tokens), rows=text.scored)
    try:
        asked = range(text.start - 1, len(text.tokens) - 1)
        return model.forward(text.tokens[:-1], state, rows=tuple(asked)).logits[:, : model.card.vocabulary_size].copy()
    finally:
        state.close()
