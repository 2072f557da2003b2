"""Penalties for tokens that occurred, and biases: how they change a row of logits, and the counts that they need.

Counts are exact and every step is one float32 operation, so a token's logit does not depend on how it was drafted.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import InputError

Bias = tuple[tuple[int, float], ...]
"""Ids, ascending, each with the number that is added to its logit."""
MOST_BIAS = 100.0
_BAN = -1e4
"""Added instead of -100, OpenAI's ban, which a high temperature would undo. It is finite: where a grammar allows only
banned tokens, the likeliest of them comes."""
_ROOM = 256
"""Initial capacity of the counts; it doubles when they are full."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Some indices of a row, each once, each with a number: a count or a bias."""

    ids: IntArray
    numbers: FloatArray

    def among(self, ids: IntArray | None) -> "Marked":
        """Return the same marks in a row whose elements have these `ids`, ascending; None: its indices."""
        if ids is None or not len(self.ids):
            return self
        places = np.searchsorted(ids, self.ids)
        places[places == len(ids)] = 0
        inside = ids[places] == self.ids
        return Marked(places[inside], self.numbers[inside])

    @classmethod
    def of(cls, numbers: Mapping[int, float] | Bias = ()) -> "Marked":
        pairs = sorted(dict(numbers).items())
        return cls(np.array([id for id, _ in pairs], np.int64), np.array([each for _, each in pairs], np.float32))


class Counter:
    """Counts how often each token was generated; those of the prompt count 0. Ids from `size` on are left out."""

    __slots__ = ("_counts", "_ids", "_places", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: dict[int, int] = {}
        self._ids: IntArray = np.empty(_ROOM, np.int64)
        self._counts: FloatArray = np.empty(_ROOM, np.float32)

    def clear(self) -> None:
        self._places.clear()

    def add(self, tokens: Iterable[int], *, generated: bool) -> None:
        """Append tokens of the answer, if `generated`, or of the prompt."""
        for token in tokens:
            if (place := self._places.get(token)) is None:
                if token >= self._size:
                    continue
                place = self._places[token] = len(self._places)
                if place == len(self._ids):
                    self._ids, self._counts = np.resize(self._ids, 2 * place), np.resize(self._counts, 2 * place)
                self._ids[place], self._counts[place] = token, 0
            self._counts[place] += generated

    def after(self, path: Iterable[int] = ()) -> Marked:
        """Return the counts after `path`, which is generated; valid until the next token is added."""
        length = len(self._places)
        ids, counts, more = self._ids[:length], self._counts[:length].copy(), dict[int, int]()
        for token in path:
            if (place := self._places.get(token)) is not None:
                counts[place] += 1
            elif token < self._size:
                more[token] = more.get(token, 0) + 1
        if not more:
            return Marked(ids, counts)
        added = Marked.of(more)
        return Marked(np.concatenate((ids, added.ids)), np.concatenate((counts, added.numbers)))


class LastTokens:
    """Counts as `Counter`, but only in the last `most` tokens."""

    __slots__ = ("_last", "_size")

    def __init__(self, size: int, most: int) -> None:
        self._size = size
        self._last: deque[tuple[int, bool]] = deque(maxlen=most)

    def clear(self) -> None:
        self._last.clear()

    def add(self, tokens: Iterable[int], *, generated: bool) -> None:
        self._last.extend((token, generated) for token in tokens)

    def after(self, path: Iterable[int] = ()) -> Marked:
        last, counts = self._last.copy(), dict[int, int]()
        last.extend((token, True) for token in path)
        for token, generated in last:
            if token < self._size:
                counts[token] = counts.get(token, 0) + generated
        return Marked.of(counts)


def repeated(logits: FloatArray, counts: FloatArray, penalty: float) -> FloatArray:
    """Divide positive and multiply negative logits of every token seen, in the prompt too (CTRL, 1909.05858)."""
    return np.where(logits > 0, logits / np.float32(penalty), logits * np.float32(penalty))


def frequent(logits: FloatArray, counts: FloatArray, penalty: float) -> FloatArray:
    """Subtract the penalty as often as the token was generated (OpenAI; vLLM counts the same)."""
    return logits - counts * np.float32(penalty)


def present(logits: FloatArray, counts: FloatArray, penalty: float) -> FloatArray:
    """Subtract the penalty once if the token was generated."""
    return logits - (counts > 0).astype(np.float32) * np.float32(penalty)


def checked_bias(given: Mapping[int, float] | Bias) -> Bias:
    """Return biases in the order of their ids. Raises InputError for what is no id, or a number out of range."""
    pairs: dict[Any, Any] = dict(given)
    for id, amount in pairs.items():
        if isinstance(id, bool) or not isinstance(id, Integral) or id < 0:
            raise InputError(f"logit_bias has the id {id!r}: ids are whole numbers of 0 or more")
        if not (isinstance(amount, Real) and -MOST_BIAS <= float(amount) <= MOST_BIAS):
            raise InputError(f"logit_bias {amount!r} of id {id} is out of range: -100 (never) to 100")
    return tuple(sorted((int(id), float(amount)) for id, amount in pairs.items()))


def biases_of(pairs: Bias) -> Marked:
    """Return what is added to each logit."""
    return Marked.of(tuple((id, _BAN if amount == -MOST_BIAS else amount) for id, amount in pairs))
