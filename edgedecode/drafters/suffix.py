"""Drafts by the longest suffix that occurred before, here or in past outputs (SAM-Decoding, 2411.10666)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from weakref import finalize

from edgedecode.errors import BudgetExceeded
from edgedecode.memory import Lease
from edgedecode.protocols import Drafter, DraftSetting, UniformSource
from edgedecode.types import EMPTY_DRAFT, WHOLE, Draft, Plan
from edgedecode.verify import Verdict

from .automaton import TOKEN_NBYTES, Cursor, SuffixAutomaton
from .past import STORE_NBYTES, PastOutputs, PastReader, following
from .remembered import OutputFile

__all__ = ["SuffixDrafter", "SuffixSource"]

SHORTEST_MATCH = 2
GROWTH = 4
"""Drafted tokens per matched one, beyond the first: a long match is a copy."""


class SuffixSource:
    """Opens suffix drafters, which share one store of past outputs; needs no model."""

    name = "suffix"
    needs_model = False
    needs: Sequence[str] = ()

    def __init__(self) -> None:
        self._past: PastOutputs | None = None
        self._lease: Lease | None = None

    def open(self, setting: DraftSetting) -> Drafter:
        lease = setting.budget.reserve("suffix index", setting.capacity * TOKEN_NBYTES)
        return SuffixDrafter(lease, ends=setting.ends, past=self._store(setting), remember=setting.remember)

    def close(self) -> None:
        if self._past is not None:
            self._past.close()
        if self._lease is not None:
            self._lease.release()
        self._past = self._lease = None

    def _store(self, setting: DraftSetting) -> PastOutputs | None:
        """Return the store, which makes way for anything else; None, with a notice, where the budget has no room."""
        if self._past is None:
            try:
                self._lease = setting.budget.reserve("past outputs", STORE_NBYTES, priority=-1, reclaim=self.close)
            except BudgetExceeded as error:
                logging.getLogger("edgedecode").info("past outputs are not kept: %s", error)
                return None
            self._past = PastOutputs()
        if setting.remember and (file := OutputFile.of_tokenizer(setting.tokenizer_digest)) is not None:
            self._past.remember(file, vocabulary_size=setting.vocabulary_size)
        return self._past


class SuffixDrafter:
    """Follows the most recent place of the longest suffix; past outputs where they match longer than the context."""

    name = "suffix"
    free = True

    def __init__(
        self,
        lease: Lease,
        *,
        ends: frozenset[int] = frozenset(),
        past: PastOutputs | None = None,
        remember: bool = False,
    ) -> None:
        self._lease = lease
        self._remember = remember
        finalize(self, lease.release)  # a drafter that is dropped, not closed
        self._ends = ends
        self._index = SuffixAutomaton()
        self._past = past
        self._reader = None if past is None else PastReader(past)
        self._context: Sequence[int] = ()
        self._prompt = 0
        """How many tokens of the context this generation did not emit."""

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def begin(self, context: Sequence[int]) -> None:
        self._store_said()
        self._context, self._prompt = context, len(context)
        index = self._index
        if not index.whole or index.tokens.tolist() != list(context[: len(index)]):
            index.clear()
        if self._reader is not None:
            self._reader.forget()

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._read(context)
        here = self._index.match
        there = None if self._reader is None else self._reader.best()
        if there is not None and there.length > here.length:
            matched = there.length
            tokens = following(there, _length(matched, limit))
        else:
            matched = here.length
            tokens = self._index.following(here.place, _length(matched, limit)) if matched else []
        if matched < SHORTEST_MATCH or not tokens:
            return EMPTY_DRAFT
        return Draft(self._ended(tokens), source=self.name, match=matched)

    def continuation(self, context: Sequence[int], extra: Sequence[int], limit: int) -> tuple[int, ...]:
        """Return what would follow `context` and then `extra`, nothing after an end token; the index is not changed."""
        if extra and extra[-1] in self._ends:
            return ()
        self._read(context)
        cursor = Cursor(self._index, at_end=True)
        cursor.read(extra)
        place, matched = cursor.match
        if matched < SHORTEST_MATCH or limit <= 0:
            return ()
        return self._ended(self._index.following(place, _length(matched, limit), extra=extra))

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """What was said is taken from the context, once, when the generation is over."""

    def close(self) -> None:
        self._store_said()
        self._lease.release()

    def _read(self, context: Sequence[int]) -> None:
        self._index.extend(context[len(self._index) :])
        if self._reader is not None:
            self._reader.read(context)

    def _ended(self, tokens: list[int]) -> tuple[int, ...]:
        """Cut after the first end token."""
        if self._ends.isdisjoint(tokens):
            return tuple(tokens)
        end = next((index + 1 for index, token in enumerate(tokens) if token in self._ends), len(tokens))
        return tuple(tokens[:end])

    def _store_said(self) -> None:
        said, self._context = self._context[self._prompt :], ()
        if self._past is not None and said:
            self._past.add(said, remember=self._remember)


def _length(matched: int, limit: int) -> int:
    return min(limit, 1 + GROWTH * matched)
