"""Past outputs that sessions with `remember` share: text often repeats earlier text (SuffixDecoding, 2411.04975).

It has two automata of equal size. When the newer one is full, the older one is dropped and a new one started (first in,
first out, by halves).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from threading import Lock

from edgedecode.errors import BudgetExceeded
from edgedecode.memory.budget import Lease

from .automaton import TOKEN_NBYTES, Cursor, SuffixAutomaton
from .remembered import OutputFile

STORE_TOKENS = 16384
_BOUNDARY = -1
"""Ends every output. It is not an id, so that no match extends across it."""
_SHORTEST = 8
"""Outputs of fewer tokens are not stored."""
_SUFFIX = 32
"""Last tokens of the context that are matched again when the store has changed: longer matches are not needed."""


class PastOutputs:
    """Outputs of this process and, with a file, of earlier ones.

    lease: grows before an output is stored; an output that does not fit is not stored. None: no limit.
    """

    def __init__(self, *, capacity: int = STORE_TOKENS, lease: Lease | None = None) -> None:
        self._lease = lease
        self._adding = Lock()
        """Held while an output is leased and added. `close`, which a full budget calls, waits for `_writing` only."""
        self._half = capacity // 2
        self._closed = False
        self._writing = Lock()
        self._file: OutputFile | None = None
        self.version = 0
        """Incremented by every change."""
        self.automata = [SuffixAutomaton()]
        """The most recent first."""

    def remember(self, file: OutputFile, *, vocabulary_size: int) -> None:
        """Load a file's outputs, and append later ones. Calls after the first do nothing."""
        if self._file is None:
            self._file = file
            for output in file.load(2 * self._half, vocabulary_size=vocabulary_size):
                self._store(output)

    def add(self, tokens: Sequence[int]) -> None:
        """Store an output, or its last part if it exceeds half the store, and append it to the file if there is one."""
        if len(tokens) < _SHORTEST or self._closed:
            return
        output = array("i", tokens[-(self._half - 1) :])
        self._store(output)
        if self._file is not None:
            self._file.append(output)

    def close(self) -> None:
        """Drop everything and store no more; the file stays."""
        with self._writing:
            self._closed = True
            self.automata = [SuffixAutomaton()]
            self.version += 1

    def _store(self, output: array[int]) -> None:
        with self._adding:
            with self._writing:
                if len(self.automata[0]) + len(output) + 1 > self._half or not self.automata[0].valid:
                    self.automata = [SuffixAutomaton(), self.automata[0]]
                    self.version += 1
            if not self._leased(len(output) + 1):
                return
            with self._writing:
                if not self._closed:
                    self.automata[0].extend((*output, _BOUNDARY))
                    self.version += 1

    def _leased(self, more: int) -> bool:
        """Lease memory for the stored tokens and `more`; return whether there is room."""
        if self._lease is None:
            return True
        try:
            self._lease.resize(TOKEN_NBYTES * (more + sum(len(automaton) for automaton in self.automata)))
        except (BudgetExceeded, ValueError):  # no room, or the lease was released by another thread
            return False
        return True


class PastReader:
    """One session's position in the store."""

    def __init__(self, past: PastOutputs) -> None:
        self._past = past
        self._read = 0
        self._restart()

    def forget(self) -> None:
        """Start over with a different context."""
        self._restart()

    def read(self, context: Sequence[int]) -> None:
        """Follow the context to its end."""
        if self._version != self._past.version:
            self._restart()
        start = self._read or max(0, len(context) - _SUFFIX)
        for cursor in self._cursors:
            cursor.read(context[start:])
        self._read = len(context)

    def best(self) -> Cursor | None:
        """Return the cursor with the longest match, the most recent of equals; None if nothing matches."""
        best = max(self._cursors, key=_matched, default=None)
        return best if best is not None and best.length and best.automaton.valid else None

    def _restart(self) -> None:
        self._version = self._past.version
        self._cursors = [Cursor(automaton) for automaton in self._past.automata if len(automaton)]
        self._read = 0


def _matched(cursor: Cursor) -> int:
    return cursor.length


def following(cursor: Cursor, limit: int) -> list[int]:
    """Return how the output at the cursor continued, up to its end."""
    start = cursor.match.place + 1
    tokens = cursor.automaton.tokens[start : start + limit].tolist()
    return tokens[: tokens.index(_BOUNDARY)] if _BOUNDARY in tokens else tokens
