"""A suffix automaton (Blumer 1985), which finds where the longest suffix of a growing sequence of ids occurred before.

Built online, amortised O(1) per token (SAM-Decoding, 2411.10666). Ids are 32-bit; negative ones never match. Most
states have one transition: the first is stored in arrays, further ones in dictionaries.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

TOKEN_NBYTES = 320
"""Bytes per token: 117 to 131 were measured on text, up to 288 on random bits (CPython 3.11)."""
_REFRESHED = 16
"""States per token whose latest place is updated; shorter suffixes of very repetitive text keep an older place."""


class Match(NamedTuple):
    """The longest suffix that occurred before: the place where that occurrence ends, and its length; (-1, 0): none."""

    place: int
    length: int


NO_MATCH = Match(-1, 0)


class SuffixAutomaton:
    """An index of all substrings of `tokens`. State 0 is the empty string; `_places` are ends of recent occurrences."""

    __slots__ = ("_branches", "_last", "_lengths", "_links", "_only", "_places", "_then", "tokens", "valid")

    def __init__(self) -> None:
        self.tokens = array("i")
        self.valid = True
        """False after an interrupt inside `extend`, which leaves the index inconsistent."""
        self._last = 0
        self._links, self._lengths, self._places = array("i", [-1]), array("i", [0]), array("i", [-1])
        self._only, self._then = array("i", [0]), array("i", [-1])
        """A state's first transition: the id, and the state after it (-1: no transition)."""
        self._branches: dict[int, dict[int, int]] = {}
        """A state's further transitions."""

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ids."""
        links, lengths, places = self._links, self._lengths, self._places
        only, then, branches, known = self._only, self._then, self._branches, self.tokens
        self.valid = False
        for token in tokens:
            here, new = len(known), len(links)
            known.append(token)
            links.append(0)
            lengths.append(here + 1)
            places.append(here)
            only.append(0)
            then.append(-1)
            state, found = self._last, -1
            while state >= 0:
                if then[state] < 0:
                    only[state], then[state] = token, new
                elif only[state] == token:
                    found = then[state]
                    break
                elif (more := branches.get(state)) is None:
                    branches[state] = {token: new}
                elif (found := more.get(token, -1)) >= 0:
                    break
                else:
                    more[token] = new
                state = links[state]
            if state >= 0:
                exact = lengths[state] + 1 == lengths[found]
                links[new] = found if exact else self._split(state, token, found)
            self._last = new
            suffix = links[new]
            for _ in range(_REFRESHED):
                if suffix <= 0:
                    break
                places[suffix] = here
                suffix = links[suffix]
        self.valid = True

    def after(self, state: int, token: int) -> int:
        """Return the state after `token`; -1 if it never followed."""
        if self._then[state] >= 0 and self._only[state] == token:
            return self._then[state]
        more = self._branches.get(state)
        return -1 if more is None else more.get(token, -1)

    def _split(self, state: int, token: int, found: int) -> int:
        """Move the shorter strings of state `found`, which also end here, to a new state; return it."""
        links, clone = self._links, len(self._links)
        self._lengths.append(self._lengths[state] + 1)
        self._places.append(self._places[found])
        self._only.append(self._only[found])
        self._then.append(self._then[found])
        if found in self._branches:
            self._branches[clone] = dict(self._branches[found])
        links.append(links[found])
        links[found] = clone
        while state >= 0 and self.after(state, token) == found:
            if self._only[state] == token:
                self._then[state] = clone
            else:
                self._branches[state][token] = clone
            state = links[state]
        return clone


class Cursor:
    """Follows a sequence and tracks its longest suffix that occurs in an automaton."""

    __slots__ = ("_state", "automaton", "length")

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self._state = self.length = 0
        """Length of the match in tokens."""

    def read(self, tokens: Iterable[int]) -> None:
        """Follow these ids."""
        automaton = self.automaton
        state, length = self._state, self.length
        for token in tokens:
            following = automaton.after(state, token)
            while following < 0 and state:
                state = automaton._links[state]
                length = min(length, automaton._lengths[state])
                following = automaton.after(state, token)
            state, length = (following, length + 1) if following > 0 else (0, 0)
        self._state, self.length = state, length

    @property
    def match(self) -> Match:
        return Match(self.automaton._places[self._state], self.length) if self._state else NO_MATCH
