"""What a draft would say at every place of a text, at every size of its head, from one pass over the text.

While a draft is accepted, its context is the target's own text. So a greedy draft's token is the text's exactly where
the arg-max of its logits after the text so far is, and a smaller head only has fewer logits to choose from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.arrays import FloatArray, IntArray
from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.model import LanguageModel, State

from .ranking import Ranking
from .scored_text import ScoredText

__all__ = ["BoolArray", "Nested", "TextHits", "forced_hits"]

BoolArray = npt.NDArray[np.bool_]

_LOGITS = 1 << 22
"""Most logits of one pass."""
_WIDEST = 128


@dataclass(frozen=True, slots=True, eq=False)
class TextHits:
    """At which of a text's scored tokens a greedy draft would have said the same: [tokens, sizes + 1]."""

    hits: BoolArray
    ended: bool


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """Vocabularies of several sizes, each within the next, the last the whole one: by the ids that each one adds.

    Arrays by size have a column for each of them.
    """

    parts: tuple[IntArray, ...]
    places: IntArray
    bounds: IntArray

    @classmethod
    def of(cls, ranking: Ranking, sizes: Sequence[int]) -> Nested:
        """Cut a ranking at these sizes, ascending; the whole vocabulary comes after them."""
        bounds = [0, *sizes, ranking.vocabulary_size]
        parts = tuple(np.sort(ranking.order[low:high]) for low, high in pairwise(bounds))
        return cls(parts, ranking.places, np.asarray(bounds[1:], np.int64))

    def coverage(self, texts: Sequence[Sequence[int]]) -> FloatArray:
        """Return by size which share of these tokens it has; of no tokens 0."""
        tokens = np.asarray([token for text in texts for token in text], np.int64)
        if not len(tokens):
            return np.zeros(len(self.bounds), np.float32)
        kept = self.places[tokens][:, None] < self.bounds[None, :]
        return np.asarray(kept.mean(axis=0), np.float32)

    def likeliest(self, logits: FloatArray) -> IntArray:
        """Return [rows, sizes + 1], the id of the largest logit among each size's; of equal ones the lowest.

        logits: [rows, at least the vocabulary].
        """
        found = np.empty((len(logits), len(self.parts)), np.int64)
        best, ids = np.full(len(logits), -np.inf, np.float32), np.full(len(logits), len(self.places), np.int64)
        rows = np.arange(len(logits))
        for column, part in enumerate(self.parts):
            if len(part):
                inside = logits[:, part]
                at = inside.argmax(axis=1)
                values, theirs = inside[rows, at], part[at]
                better = (values > best) | ((values == best) & (theirs < ids))
                best, ids = np.where(better, values, best), np.where(better, theirs, ids)
            found[:, column] = ids
        return found


def forced_hits(model: LanguageModel, text: ScoredText, nested: Nested) -> TextHits:
    """Read a text with the whole draft and say where each size would have hit. Raises what the model raises."""
    expected = np.asarray(text.scored, np.int64)
    hits = np.zeros((len(expected), len(nested.parts)), np.bool_)
    width = max(1, min(_WIDEST, _LOGITS // model.card.rows))
    state = model.new_state(len(text.tokens), rows=width)
    try:
        _read(model, state, text.tokens[: text.start - 1])
        for start in range(0, len(expected), width):
            piece = text.tokens[text.start - 1 + start : text.start - 1 + min(start + width, len(expected))]
            logits = model.forward(piece, state, rows="all").logits
            hits[start : start + len(piece)] = nested.likeliest(logits) == expected[start : start + len(piece), None]
            state.keep(range(len(piece)))
    finally:
        state.close()
    return TextHits(hits, text.ended)


def _read(model: LanguageModel, state: State, tokens: Sequence[int]) -> None:
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        model.forward(chunk, state, rows="none")
        state.keep(range(len(chunk)))
