"""Which ids a text is likely to go on with: those it has, and those the target thought of (NanoSpec, 2605.26444)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from edgedecode.types import IntArray

__all__ = ["WINDOW", "LocalVocabulary"]

WINDOW = 3072
"""Of the context so many of the newest tokens count."""


class LocalVocabulary:
    """At most `most` ids of a vocabulary of `size`: `always`, then the newest of what was added.

    `ids` stays the same array until something new is added.
    """

    def __init__(self, *, size: int, most: int, always: Iterable[int]) -> None:
        self._always = sorted(set(always))[:most]
        self._most = most
        self._inside: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._order: list[int] = []
        """What was added, oldest first; each id once."""
        self.ids: IntArray = np.empty(0, np.int64)
        self.begin(())

    def __len__(self) -> int:
        return len(self.ids)

    def begin(self, context: Sequence[int]) -> None:
        """Start over with a context's newest tokens."""
        self._inside[self.ids] = False
        self._order.clear()
        self.ids = np.array(self._always, np.int64)
        self._inside[self.ids] = True
        self.add(context[-WINDOW:])

    def add(self, tokens: Sequence[int] | IntArray) -> bool:
        """Add these ids, newest last, and return whether any was new. The oldest go where there is no room."""
        given = np.asarray(tokens, np.int64)
        fresh = given[~self._inside[given]]
        if not len(fresh):
            return False
        new = list(dict.fromkeys(fresh.tolist()))[-self._most :]
        self._order += new
        if over := max(0, len(self._always) + len(self._order) - self._most):
            over = min(len(self._order), over + self._most // 8)  # some more, so that the next ones find room
            self._inside[self._order[:over]] = False
            del self._order[:over]
        self._inside[self._order[-len(new) :]] = True
        self.ids = np.flatnonzero(self._inside).astype(np.int64)
        return True
