"""DRY, "don't repeat yourself", by p-e-w: oobabooga/textgen, pull request 5677.

Where the last L tokens occurred before, the token that followed them has its logit lowered by
multiplier * base**(L - allowed length), L being the longest such repetition that is allowed or longer. A repetition
contains no sequence breaker, and no breaker is penalised. It depends on the sequence and the path alone.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.errors import InputError

from .penalties import Marked

_MOST_BREAKERS, _LONGEST_BREAKER = 128, 64
_MOST_OVER = 64
"""Tokens above the allowed length that count, which bounds the work on a text that repeats one token."""
_MOST = 1e4
"""Largest penalty: as good as a ban, but finite, as a bias of -100."""
_NONE = -1
"""Instead of breakers and padding, which neither match nor are penalised."""


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """What DRY's penalty depends on; last: of how many tokens, 0: all."""

    multiplier: float
    base: float
    allowed: int
    last: int
    breakers: tuple[str | int, ...]

    def of(self, length: int) -> float:
        """Return the penalty for what would continue a repetition of this length, at least the allowed one."""
        return min(_MOST, self.multiplier * self.base ** (length - self.allowed))


class Repetitions:
    """The tokens of a sequence, and the penalties for what would continue a repetition in it."""

    __slots__ = ("_breakers", "_penalty", "_size", "_tokens")

    def __init__(self, size: int, penalty: RepetitionPenalty) -> None:
        self._size, self._penalty = size, penalty
        self._breakers = np.array([each for each in penalty.breakers if isinstance(each, int)], np.int64)
        self.begin(())

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens: IntArray = np.empty(0, np.int64)
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        self._tokens = self._with(tokens)

    def after(self, path: Sequence[int] = ()) -> Marked:
        """Return the ids that would continue a repetition after `path`, each with its penalty."""
        tokens, allowed, longest = self._with(path), self._penalty.allowed, dict[int, int]()
        ends = np.arange(len(tokens) - 1)
        most = min(len(tokens), allowed + _MOST_OVER)
        for length in range(most):  # of a repetition that ends at each of `ends`
            if (token := tokens[-1 - length]) == _NONE:
                break
            ends = ends[ends >= length]
            ends = ends[tokens[ends - length] == token]
            if not len(ends):
                break
            if length + 1 >= allowed:
                longest |= dict.fromkeys(tokens[ends + 1].tolist(), length + 1)
        longest.pop(_NONE, None)
        return Marked.of({token: self._penalty.of(length) for token, length in longest.items()})

    def _with(self, tokens: Sequence[int]) -> IntArray:
        """Return the last tokens of the sequence and `tokens`."""
        more = np.array(tokens, np.int64)
        more[np.isin(more, self._breakers) | (more >= self._size)] = _NONE
        return np.concatenate((self._tokens, more))[-self._penalty.last :]


def checked_breakers(given: Iterable[str | int]) -> tuple[str | int, ...]:
    """Return the breakers. Raises InputError for too many texts, and for one that is empty or long."""
    given = tuple(given)
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) > _MOST_BREAKERS:
        raise InputError(f"dry_sequence_breakers has {len(texts)} texts: up to {_MOST_BREAKERS} are allowed")
    if wrong := [len(each) for each in texts if not 0 < len(each) <= _LONGEST_BREAKER]:
        raise InputError(f"dry_sequence_breakers has a text of {wrong[0]} characters: 1 to {_LONGEST_BREAKER}")
    return given


def breaker_ids(
    given: Iterable[str | int], find: Callable[[str], Collection[int]], *, defaults: Collection[str | int]
) -> tuple[int, ...]:
    """Return the ids of breakers. find: returns the ids of the tokens that contain a text.

    Raises InputError for a text that no token contains, except the defaults, which need not suit a tokenizer.
    """
    ids = set[int]()
    for each in given:
        if isinstance(each, str) and not (found := find(each)) and each not in defaults:
            raise InputError(f"dry_sequence_breakers has {each!r}, which no token contains: give shorter texts")
        ids |= {each} if isinstance(each, int) else {*found}
    return tuple(sorted(ids))
