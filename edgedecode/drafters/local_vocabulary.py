"""Which ids a text is likely to go on with: those it has, and those the target thought of (NanoSpec, 2605.26444)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.arrays import IntArray

__all__ = ["WINDOW", "LocalVocabulary"]

WINDOW = 3072
"""Of the context so many of the newest tokens count."""


class LocalVocabulary:
    """At most `most` ids of a vocabulary of `size`: `always`, and the newest of what was added.

    `ids` stays the same array until something new is added.
    """

    def __init__(self, *, size: int, most: int, always: Iterable[int]) -> None:
        self._always = np.array(sorted(set(always))[:most], np.int64)
        self._most = most
        self._inside: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._recent: list[int] = []
        """What was added, newest last."""
        self.ids: IntArray = self._always
        self._inside[self.ids] = True

    def __len__(self) -> int:
        return len(self.ids)

    def begin(self, context: Sequence[int]) -> None:
        """Start over with a context's newest tokens."""
        self._recent.clear()
        self._become(self._always)
        self.add(context[-WINDOW:])

    def add(self, tokens: Sequence[int] | IntArray) -> None:
        """Add these ids, newest last. The oldest go where there is no room."""
        given = np.asarray(tokens, np.int64)
        self._recent += given.tolist()
        if len(self._recent) > 2 * WINDOW:
            del self._recent[:-WINDOW]
        fresh = given[~self._inside[given]]
        if not len(fresh):
            return
        self._inside[fresh] = True
        ids = np.flatnonzero(self._inside).astype(np.int64)
        self._become(ids if len(ids) <= self._most else self._newest())

    def _newest(self) -> IntArray:
        """Return what is always there and the newest of the others; an eighth of the room is left to the next ones."""
        taken = set(self._always.tolist())
        room = self._most - self._most // 8 if len(taken) < self._most - self._most // 8 else len(taken) + 1
        for token in reversed(self._recent):
            if len(taken) >= min(room, self._most):
                break
            taken.add(token)
        return np.array(sorted(taken), np.int64)

    def _become(self, ids: IntArray) -> None:
        self._inside[:] = False
        self._inside[ids] = True
        self.ids = ids
