"""Scores texts with a model: loss, top token, and KL divergence from a reference run.

Texts are processed in passes of at most `PIECE` rows over one state, as in decoding: keys and values go through the KV
cache with its type, and only one pass's logits are held at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.loop import prefill
from edgedecode.decoding.model import LanguageModel

PIECE = 64
"""Most rows of logits computed and held at once."""
LIKELY = 64
"""Ids of a row whose probabilities are stored individually; the others form one class."""
_LEAST = float(np.finfo(np.float32).tiny)

FloatNumbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text as token ids. The tokens from `start` on, which is at least 1, are scored."""

    tokens: tuple[int, ...]
    start: int

    @property
    def scored(self) -> int:
        return len(self.tokens) - self.start


@dataclass(frozen=True, slots=True)
class Scores:
    """For every scored token, in order: its loss in nats, float32, and the model's top id."""

    losses: FloatArray
    leading: IntArray

    @classmethod
    def joined(cls, parts: Iterable[Scores | RowScores]) -> Scores:
        """Return the scores of these parts, one after the other."""
        found = [(part.losses, part.leading) for part in parts]
        return cls(np.concatenate([losses for losses, _ in found]), np.concatenate([ids for _, ids in found]))

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.losses.mean(dtype=np.float64)))

    def agreement(self, other: Scores) -> float:
        """Return the share of tokens at which both have the same top id."""
        return float((self.leading == other.leading).mean())


@dataclass(frozen=True, slots=True)
class Likely:
    """The most likely ids of some rows, int32 [rows, ids], their probabilities, and the other ids' total (`rest`)."""

    ids: npt.NDArray[np.int32]
    shares: FloatArray
    rest: FloatArray

    @staticmethod
    def nbytes(rows: int) -> int:
        """Return the most bytes that `rows` rows take."""
        return rows * (LIKELY * 8 + 4)


@dataclass(frozen=True, slots=True)
class RowScores:
    """Scores of some rows of a text; the probabilities of a row are `exps` / `sums`."""

    losses: FloatArray
    leading: IntArray
    exps: FloatArray
    sums: FloatNumbers

    @classmethod
    def of(cls, rows: FloatArray, expected: Sequence[int]) -> RowScores:
        """Score rows of logits, [rows, ids]; `expected` is the id that follows each row."""
        highest = rows.max(axis=1)
        exps = np.exp(rows - highest[:, None])
        sums = exps.sum(axis=1, dtype=np.float64)
        losses = np.log(sums) + highest - rows[np.arange(len(rows)), np.asarray(expected)]
        return cls(np.asarray(losses, np.float32), np.asarray(rows.argmax(axis=1), np.int64), exps, sums)

    def likely(self) -> Likely:
        """Return the `LIKELY` most likely ids of each row, or all ids if the rows have fewer."""
        count = min(LIKELY, self.exps.shape[1])
        ids = np.empty((len(self.exps), count), np.int32)
        for own, row in zip(ids, self.exps, strict=True):  # row by row: argpartition's indexes are twice a row's size
            own[:] = np.argpartition(row, -count)[-count:]
        return Likely(ids, *self._classes(ids))

    def divergence(self, reference: Likely) -> FloatNumbers:
        """Return KL(reference ‖ row) for each row, in nats.

        Computed over the reference's most likely ids and one class for the others: a lower bound of the full value.
        """
        found, shares = self._classes(reference.ids), (reference.shares, reference.rest)
        return np.asarray(_divergence(shares[0], found[0]).sum(axis=1) + _divergence(shares[1], found[1]))

    def _classes(self, ids: npt.NDArray[np.int32]) -> tuple[FloatArray, FloatArray]:
        """Return each row's probabilities of these ids, and the total probability of all others."""
        own = np.take_along_axis(self.exps, ids, axis=1).astype(np.float64)
        others = np.maximum(self.sums - own.sum(axis=1), 0.0) if ids.shape[1] < self.exps.shape[1] else 0 * self.sums
        return (own / self.sums[:, None]).astype(np.float32), (others / self.sums).astype(np.float32)


def _divergence(reference: FloatArray, found: FloatArray) -> FloatNumbers:
    """Return each class's term of the divergence; 0 for a class without mass in the reference."""
    p, q = np.maximum(reference, _LEAST).astype(np.float64), np.maximum(found, _LEAST).astype(np.float64)
    return np.where(reference > 0, p * (np.log(p) - np.log(q)), 0.0)


def score_rows(model: LanguageModel, text: ScoredText) -> Iterator[RowScores]:
    """Score the tokens from the text's `start` on, pass by pass."""
    at = text.start
    for rows in logit_rows(model, text):
        yield RowScores.of(rows, text.tokens[at : at + len(rows)])
        at += len(rows)


def logit_rows(model: LanguageModel, text: ScoredText) -> Iterator[FloatArray]:
    """Yield the logits for the tokens from the text's `start` on, [rows of a pass, vocabulary size].

    A pass has at most `PIECE` rows, valid until the next one. Rows of one pass also read each other's keys and values
    from the KV cache.
    """
    tokens, last = text.tokens, len(text.tokens) - 1
    state = model.new_state(len(tokens), rows=min(PIECE, text.scored))
    try:
        prefill(model, state, tokens[: text.start - 1])
        for at in range(text.start - 1, last, PIECE):
            end = min(at + PIECE, last)
            yield model.forward(tokens[at:end], state, rows="all").logits[:, : model.card.vocabulary_size]
            state.keep(range(end - at))
    finally:
        state.close()
