"""Drafts from the text that the caller expects as the answer: an edited file is mostly the file (predicted outputs)."""

from collections.abc import Sequence
from itertools import takewhile

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.sampling.probs import UniformSource

from .source import EXPECTED
from .suffix import characters

TRUST = 8
"""Tokens that a match counts for at the beginning, where nothing was compared yet. `acceptance.PRIORS` then expects
enough of it to draft at once; lower: the first lines are written without drafts."""
LONGEST_TAIL, SHORTEST_TAIL = 16, 2
"""Last tokens of an answer that are searched in the text, to go on after a difference."""
AFTER_DIFFERENCE = 1
"""The match of a draft that assumes that one token took the place of another."""


class ExpectedDrafter(Drafter):
    """Continues the expected text from where the answer has come to in it.

    At a difference it goes on behind the nearest place where the last tokens of the answer are found again; where they
    are not, as if one token had been replaced. The text costs 4 bytes per token, and at most a context is kept.
    """

    name = EXPECTED
    free = True

    def __init__(self, tokens: Sequence[int], *, ends: frozenset[int] = frozenset()) -> None:
        self._tokens = tuple(takewhile(lambda token: token not in ends, tokens))
        self._text = characters(self._tokens)
        self._begun = self._read = self._place = 0
        self._match = TRUST
        self._different_at = -1
        """Place of the last difference, until a match is found; -1: none."""

    @property
    def nbytes(self) -> int:
        return len(self._text) * 4

    def begin(self, context: Sequence[int]) -> None:
        self._begun = self._read = len(context)

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._follow(context)
        tokens = self._tokens[self._place : self._place + max(0, limit)]
        return Draft(tokens, source=self.name, match=self._match) if tokens else EMPTY_DRAFT

    def repeats(self, context: Sequence[int], length: int) -> bool:
        """Return whether the answer's last `length` tokens are in the text (see `Watching`)."""
        tail = context[max(self._begun, len(context) - length) :]
        return len(tail) == length and characters(tail) in self._text

    def _follow(self, context: Sequence[int]) -> None:
        """Move on by the tokens that are new."""
        new = context[self._read :]
        self._read = len(context)
        same = 0
        for token, expected in zip(new, self._tokens[self._place : self._place + len(new)], strict=False):
            if token != expected:
                break
            same += 1
        self._place += same
        if same == len(new):
            self._match += same
            return
        if self._different_at < 0 or same >= SHORTEST_TAIL:
            self._different_at = self._place
        self._place, self._match = min(len(self._tokens), self._place + len(new) - same), AFTER_DIFFERENCE
        self._find(characters(context[max(self._begun, len(context) - LONGEST_TAIL) :]))

    def _find(self, tail: str) -> None:
        """Go on behind the longest end of `tail` that is in the text, the nearest to the last difference."""
        for length in range(len(tail), SHORTEST_TAIL - 1, -1):
            after = self._text.find(tail[-length:], self._different_at)
            before = self._text.rfind(tail[-length:], 0, self._different_at + length - 1)
            found = [place for place in (after, before) if place >= 0]
            if found:
                nearest = min(found, key=lambda place: abs(place - self._different_at))
                self._place, self._match, self._different_at = nearest + length, length, -1
                return
