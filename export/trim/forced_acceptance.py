"""How many tokens a round gives at each draft length and size of the head, from one pass of the draft over a text.

While a draft is accepted, its context is the target's own text. So a greedy draft's token is the text's exactly where
the arg-max of its logits after the text so far is, and a smaller head only has fewer logits to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.loop import prefill
from edgedecode.decoding.model import LanguageModel

from .id_ranking import Ranking
from .trim_texts import ScoredText

__all__ = ["LENGTHS", "Acceptance", "Nested", "accepted_by_round", "forced_hits", "measure_acceptance"]

BoolArray = npt.NDArray[np.bool_]

_LOGITS = 1 << 22
"""Most logits of one pass."""
_WIDEST = 128
LENGTHS = tuple(range(1, 9))


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
        prefill(model, state, text.tokens[: text.start - 1])
        for start in range(0, len(expected), width):
            piece = text.tokens[text.start - 1 + start : text.start - 1 + min(start + width, len(expected))]
            logits = model.forward(piece, state, rows="all").logits
            hits[start : start + len(piece)] = nested.likeliest(logits) == expected[start : start + len(piece), None]
            state.keep(range(len(piece)))
    finally:
        state.close()
    return TextHits(hits, text.ended)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one size of vocabulary is worth on some texts."""

    tokens: int
    coverage: float
    """Share of the tokens that it has."""
    per_round: dict[int, float]
    """Draft length → tokens a round, the target's own included."""


def measure_acceptance(
    model: LanguageModel,
    texts: Sequence[ScoredText],
    nested: Nested,
    *,
    advance: Callable[[int], None] = lambda amount: None,
) -> tuple[Acceptance, ...]:
    """Read texts with the whole draft; return what each size is worth on them, the whole vocabulary last.

    Coverage counts every text. Acceptance is a greedy draft's, so it counts what is greedy, or was given.
    """
    scored = [text.scored for text in texts]
    coverage = nested.coverage(scored)
    hits = []
    for text in texts:
        if text.greedy:
            hits.append(forced_hits(model, text, nested))
        advance(1)
    return tuple(
        Acceptance(
            tokens=sum(map(len, scored)),
            coverage=float(share),
            per_round={length: _tokens_per_round(hits, column, length) for length in LENGTHS},
        )
        for column, share in enumerate(coverage)
    )


def accepted_by_round(hits: BoolArray, *, length: int, ended: bool) -> Iterator[int]:
    """Yield what each round accepts where one text is decoded with drafts of `length`; hits [tokens]: where one hits.

    The first token comes with the prompt's own pass, which carries no draft. A text that did not end by itself was cut
    at a limit, whose last token is the target's own.
    """
    total, at = len(hits), 1
    runs = _runs(hits)
    while at < total:
        accepted = min(length, total - at - (0 if ended else 1), runs[at])
        yield accepted
        at += accepted + 1


def _tokens_per_round(texts: Sequence[TextHits], column: int, length: int) -> float:
    """Return tokens over rounds; 1, what plain decoding has, where there is no round."""
    rounds = tokens = 0
    for text in texts:
        count = sum(1 for _ in accepted_by_round(text.hits[:, column], length=length, ended=text.ended))
        rounds += count
        tokens += len(text.hits) - 1 if count else 0
    return tokens / rounds if rounds else 1.0


def _runs(hits: BoolArray) -> list[int]:
    """Return for every place how many hits follow one another from there on."""
    places = np.arange(len(hits))
    misses = np.where(hits, len(hits), places)
    following = np.minimum.accumulate(misses[::-1])[::-1]
    runs: list[int] = (following - places).tolist()
    return runs
