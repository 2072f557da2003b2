"""Computes tokens per round for each draft length and vocabulary size, from one forward pass of the draft over a text.

As long as proposals are accepted, the draft's context is the target's text. So a greedy proposal is accepted exactly if
the arg-max of the draft's logits, after the text so far, is the next token. A smaller vocabulary only has fewer
candidates.
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
from .texts import ScoredText

BoolArray = npt.NDArray[np.bool_]

_MAX_LOGITS = 1 << 22
"""Maximum number of logits per forward pass; bounds its memory."""
_MAX_WIDTH = 128
"""Maximum number of tokens per forward pass."""
LENGTHS = tuple(range(1, 9))
"""The draft lengths considered."""


@dataclass(frozen=True, slots=True, eq=False)
class TextHits:
    """Whether a greedy draft would propose each of a text's scored tokens: [tokens, sizes + 1]."""

    hits: BoolArray
    ended: bool


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """Nested vocabularies of ascending size, the full one last, stored as the ids that each one adds.

    Arrays by size have one column per vocabulary.
    """

    parts: tuple[IntArray, ...]
    places: IntArray
    """Id → its position in the ranking."""
    bounds: IntArray
    """The sizes."""

    @classmethod
    def of(cls, ranking: Ranking, sizes: Sequence[int]) -> Nested:
        """Cut a ranking at these ascending sizes; the full vocabulary is appended."""
        bounds = [0, *sizes, ranking.vocabulary_size]
        parts = tuple(np.sort(ranking.order[low:high]) for low, high in pairwise(bounds))
        return cls(parts, ranking.places, np.asarray(bounds[1:], np.int64))

    def coverage(self, texts: Sequence[Sequence[int]]) -> FloatArray:
        """Return, by size, the share of these tokens that the vocabulary contains; 0 if there are no tokens."""
        tokens = np.asarray([token for text in texts for token in text], np.int64)
        if not len(tokens):
            return np.zeros(len(self.bounds), np.float32)
        kept = self.places[tokens][:, None] < self.bounds[None, :]
        return np.asarray(kept.mean(axis=0), np.float32)

    def likeliest(self, logits: FloatArray) -> IntArray:
        """Return the arg-max id within each vocabulary, [rows, sizes + 1]; ties give the lowest id.

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
    """Run the full draft over a text; return which tokens each size would propose. Raises what the model raises."""
    expected = np.asarray(text.scored, np.int64)
    hits = np.zeros((len(expected), len(nested.parts)), np.bool_)
    width = max(1, min(_MAX_WIDTH, _MAX_LOGITS // model.card.rows))
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
    """Acceptance of one vocabulary size on some texts."""

    tokens: int
    coverage: float
    """Share of the tokens that the vocabulary contains."""
    per_round: dict[int, float]
    """Draft length → tokens per round, including the target's own."""


def measure_acceptance(
    model: LanguageModel,
    texts: Sequence[ScoredText],
    nested: Nested,
    *,
    advance: Callable[[int], None] = lambda amount: None,
) -> tuple[Acceptance, ...]:
    """Run the full draft over texts; return each size's acceptance on them, the full vocabulary last."""
    scored = [text.scored for text in texts]
    coverage = nested.coverage(scored)
    hits = []
    for text in texts:
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
    """Yield the number of proposals that each round accepts when decoding a text with drafts of `length` tokens.

    hits: for each token, whether the draft would propose it. The first token comes from prefill, which verifies no
    draft. If the text did not end by itself it was cut at a limit, where the last token is the target's own.
    """
    total, at = len(hits), 1
    runs = _runs(hits)
    while at < total:
        accepted = min(length, total - at - (0 if ended else 1), runs[at])
        yield accepted
        at += accepted + 1


def _tokens_per_round(texts: Sequence[TextHits], column: int, length: int) -> float:
    """Return tokens per round; 1, as in plain decoding, if there is no round."""
    rounds = tokens = 0
    for text in texts:
        count = sum(1 for _ in accepted_by_round(text.hits[:, column], length=length, ended=text.ended))
        rounds += count
        tokens += len(text.hits) - 1 if count else 0
    return tokens / rounds if rounds else 1.0


def _runs(hits: BoolArray) -> list[int]:
    """Return, for every position, the number of consecutive hits from there on."""
    places = np.arange(len(hits))
    misses = np.where(hits, len(hits), places)
    following = np.minimum.accumulate(misses[::-1])[::-1]
    runs: list[int] = (following - places).tolist()
    return runs
