"""Drafts what followed the last occurrence of the longest suffix, here or in past outputs (SAM-Decoding 2411.10666)."""

from __future__ import annotations

import codecs
import sys
from array import array
from collections.abc import Sequence
from weakref import finalize

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Verdict
from edgedecode.memory.budget import LEFTOVER, Lease
from edgedecode.memory.footprint import Holder
from edgedecode.sampling.probs import UniformSource

from .automaton import NO_MATCH, Match
from .past import PastOutputs, PastReader, following
from .remembered import OutputFile
from .source import DraftSetting

SHORTEST_MATCH, LONGEST_MATCH = 2, 64
GROWTH = 4
"""Drafted tokens per matched token, beyond the first: a long match is probably a copy."""
TOKEN_NBYTES = 24
"""Bytes per token of the context: a character of up to 4 bytes, and temporary copies of the text on appending."""
_CODEC = codecs.lookup("utf-32-le" if sys.byteorder == "little" else "utf-32-be").name
"""Imported here: that takes 0.4 ms, for which no answer should wait."""


def _index(capacity: int) -> Holder:
    return Holder("suffix index", capacity * TOKEN_NBYTES)


class SuffixSource:
    """Opens suffix drafters; needs no model.

    Those of sessions with `remember` share a store of past outputs. Others draft from their own conversation only: how
    fast an answer comes would tell what another conversation was answered.
    """

    name = "suffix"
    needs_model = False
    needs: Sequence[str] = ()

    def __init__(self) -> None:
        self._past: PastOutputs | None = None
        self._lease: Lease | None = None

    def open(self, setting: DraftSetting) -> Drafter:
        lease = setting.budget.reserve(*_index(setting.capacity))
        return SuffixDrafter(lease, ends=setting.ends, past=self._store(setting) if setting.remember else None)

    def holders(self, *, capacity: int, vocabulary_size: int) -> tuple[Holder, ...]:
        return (_index(capacity),)

    def close(self) -> None:
        past, lease = self._past, self._lease
        self._past = self._lease = None
        if past is not None:
            past.close()
        if lease is not None:
            lease.release()

    def _store(self, setting: DraftSetting) -> PastOutputs:
        """Return the store, which grows into what is left of the budget and is released for any other request."""
        past = self._past  # another thread that needs memory may close it
        if past is None:
            lease = setting.budget.reserve("past outputs", 0, priority=LEFTOVER)
            past = PastOutputs(lease=lease)
            self._past, self._lease = past, lease
            lease.reclaim = self.close  # last: a thread that reclaims it must find the store
        if (file := OutputFile.of_tokenizer(setting.tokenizer_digest)) is not None:
            past.remember(file, vocabulary_size=setting.vocabulary_size)
        return past


class SuffixDrafter:
    """Continues from the most recent place of the longest suffix, in past outputs if they match more than the context.

    The context is kept as text, one character per id, and searched. So nothing is built before the first draft of an
    answer, and an answer for which no draft is requested is not read at all.
    """

    name = "suffix"
    free = True

    def __init__(
        self,
        lease: Lease,
        *,
        ends: frozenset[int] = frozenset(),
        past: PastOutputs | None = None,
    ) -> None:
        self._lease = lease
        finalize(self, lease.release)  # for a drafter that is dropped without being closed
        self._ends = ends
        self._text = ""
        self._past = past
        self._reader = None if past is None else PastReader(past)
        self._context: Sequence[int] = ()
        self._prompt = 0
        """Number of tokens of the context before this generation."""

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def begin(self, context: Sequence[int]) -> None:
        self._store_output()
        self._context, self._prompt, self._text = context, len(context), ""
        if self._reader is not None:
            self._reader.forget()

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._read(context)
        place, matched = longest_earlier(self._text, len(self._text) - 1)
        past = None if self._reader is None else self._reader.best()
        if past is not None and min(past.length, LONGEST_MATCH) > matched:
            matched = past.length
            tokens = following(past, _length(matched, limit))
        else:
            most = _length(matched, limit)
            tokens = _repeated(context[place + 1 : place + 1 + most], most) if matched else []
        if matched < SHORTEST_MATCH or not tokens:
            return EMPTY_DRAFT
        return Draft(self._ended(tokens), source=self.name, match=matched)

    def repeats(self, context: Sequence[int], length: int) -> bool:
        self._read(context)
        text = self._text
        return len(text) > length and text.find(text[-length:], 0, len(text) - 1) >= 0

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """The output is stored when the generation is over."""

    def close(self) -> None:
        self._store_output()
        self._lease.release()

    def _read(self, context: Sequence[int]) -> None:
        self._text += _characters(context[len(self._text) :])
        if self._reader is not None:
            self._reader.read(context)

    def _ended(self, tokens: list[int]) -> tuple[int, ...]:
        """Cut after the first end token."""
        if self._ends.isdisjoint(tokens):
            return tuple(tokens)
        end = next((index + 1 for index, token in enumerate(tokens) if token in self._ends), len(tokens))
        return tuple(tokens[:end])

    def _store_output(self) -> None:
        context, self._context = self._context, ()
        if self._past is not None:
            self._past.add(context[self._prompt :])


def _length(matched: int, limit: int) -> int:
    return min(limit, 1 + GROWTH * matched)


def longest_earlier(text: str, end: int) -> Match:
    """Return the most recent place before `end` of the longest suffix of `text`, within the two limits of length.

    Each search starts where the previous one matched and looks for a longer match, so that together they scan `text`
    once.
    """
    place, matched, length = -1, 0, len(text)
    while matched < LONGEST_MATCH:
        wanted = max(matched + 1, SHORTEST_MATCH)
        start = text.rfind(text[-wanted:], 0, end) if wanted <= length else -1
        if start < 0:
            break
        end, matched = start + wanted, wanted
        place = end - 1
        while matched < min(end, LONGEST_MATCH) and text[place - matched] == text[length - 1 - matched]:
            matched += 1
    return Match(place, matched) if matched else NO_MATCH


def _characters(tokens: Sequence[int]) -> str:
    """Return one character per id; ids must be below 1,114,112."""
    return array("I", tokens).tobytes().decode(_CODEC, "surrogatepass")


def _repeated(tokens: Sequence[int], limit: int) -> list[int]:
    """Return `limit` of these tokens, repeating them if there are fewer: short pieces tend to repeat."""
    found = list(tokens[:limit])
    while 0 < len(found) < limit:
        found += found[: limit - len(found)]
    return found
