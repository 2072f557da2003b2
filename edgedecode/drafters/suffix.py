"""Drafts what followed the last occurrence of the longest suffix in the conversation (SAM-Decoding, 2411.10666)."""

import codecs
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple
from weakref import finalize

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.memory.budget import Holder, Lease
from edgedecode.sampling.probs import UniformSource

from .source import DrafterSource, DraftSetting


class Match(NamedTuple):
    """The longest suffix that occurred before: the place where that occurrence ends, and its length; (-1, 0): none."""

    place: int
    length: int


NO_MATCH = Match(-1, 0)
SHORTEST_MATCH, LONGEST_MATCH = 2, 64
GROWTH = 4
"""Drafted tokens per matched token, beyond the first: a long match is probably a copy."""
TOKEN_NBYTES = 24
"""Bytes per token of the context: a character of up to 4 bytes, and temporary copies of the text on appending."""
_CODEC = codecs.lookup("utf-32-le" if sys.byteorder == "little" else "utf-32-be").name
"""Imported here: that takes 0.4 ms, for which no answer should wait."""


def _index(capacity: int) -> Holder:
    return Holder("suffix index", capacity * TOKEN_NBYTES)


class SuffixSource(DrafterSource):
    """Opens suffix drafters; needs no model.

    They draft from their own conversation only: how fast an answer comes would tell what another one was answered.
    """

    name = "suffix"

    def open(self, setting: DraftSetting) -> Drafter:
        return SuffixDrafter(setting.budget.reserve(*_index(setting.capacity)), ends=setting.ends)

    def holders(self, *, capacity: int, vocabulary_size: int) -> tuple[Holder, ...]:
        return (_index(capacity),)


class SuffixDrafter(Drafter):
    """Continues from the most recent place of the longest suffix.

    The context is kept as text, one character per id, and searched. So nothing is built before the first draft of an
    answer, and an answer for which no draft is requested is not read at all.
    """

    name = "suffix"
    free = True

    def __init__(self, lease: Lease, *, ends: frozenset[int] = frozenset()) -> None:
        self._lease = lease
        finalize(self, lease.release)  # for a drafter that is dropped without being closed
        self._ends = ends
        self._text = ""

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def begin(self, context: Sequence[int]) -> None:
        self._text = ""

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._read(context)
        place, matched = longest_earlier(self._text, len(self._text) - 1)
        most = min(limit, 1 + GROWTH * matched)
        tokens = _repeated(context[place + 1 : place + 1 + most], most) if matched else []
        if matched < SHORTEST_MATCH or not tokens:
            return EMPTY_DRAFT
        return Draft(self._ended(tokens), source=self.name, match=matched)

    def repeats(self, context: Sequence[int], length: int) -> bool:
        self._read(context)
        text = self._text
        return len(text) > length and text.find(text[-length:], 0, len(text) - 1) >= 0

    def close(self) -> None:
        self._lease.release()

    def _read(self, context: Sequence[int]) -> None:
        self._text += characters(context[len(self._text) :])

    def _ended(self, tokens: list[int]) -> tuple[int, ...]:
        """Cut after the first end token."""
        if self._ends.isdisjoint(tokens):
            return tuple(tokens)
        end = next((index + 1 for index, token in enumerate(tokens) if token in self._ends), len(tokens))
        return tuple(tokens[:end])


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


def characters(tokens: Sequence[int]) -> str:
    """Return one character per id; ids must be below 1,114,112."""
    return array("I", tokens).tobytes().decode(_CODEC, "surrogatepass")


def _repeated(tokens: Sequence[int], limit: int) -> list[int]:
    """Return `limit` of these tokens, repeating them if there are fewer: short pieces tend to repeat."""
    found = list(tokens[:limit])
    while 0 < len(found) < limit:
        found += found[: limit - len(found)]
    return found
