"""How long drafts live: the chance that a drafted token is accepted, by drafter, kind of match and depth.

Two layers of counts. `History` is what all answers showed; it is shared, kept on disk, and fades slowly. `Acceptance`
is what this answer showed; it fades fast, and leans on the history. A fold over scores: same scores, same chances.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from edgedecode.decoding.policy import Score

__all__ = ["DEPTHS", "PRIORS", "Acceptance", "Counts", "History", "Key", "match_bucket"]

PRIORS = {0: 0.5, 1: 0.25, 2: 0.35, 4: 0.5, 8: 0.7, 16: 0.85, 1 << 62: 0.92}
"""The chance per token before anything was seen, by the longest match of a kind, in tokens; drafters without matches
have that of 0."""
PRIOR_ROUNDS = 2.0
"""Rounds that the prior counts for in the history, and the history in an answer. More: what is seen counts less."""
TEXT_FADE = 0.9
"""What an answer's older rounds count for after one more. Less: a text that changes is followed faster, noise too."""
HISTORY_FADE = 0.99
"""The same of the history."""
DOUBT = 0.99
"""What an answer's rounds count for after each token without one; the history's fade tenfold slower. Less: a drafter
that failed is tried again sooner."""
STREAK = 3
"""Drafts in a row that failed at once, after which an answer's successes fade three times as fast: the text changed."""
CARRIED = 0.25
"""What an answer's rounds count for in the next answer of the session."""
DEPTHS = 8
"""Positions beyond share one count."""

_SMALLEST, _HARDLY_EVER = 1e-6, 0.02

_LONGEST, _PRIORS = tuple(PRIORS), tuple(PRIORS.values())

Key = tuple[str, int]
"""Drafter and match bucket."""


class Counts:
    """Accepted and tried drafts by depth, which fade; `at` is the token at which they last did.

    What is stored is multiplied by `scale`, so that fading touches one number.
    """

    __slots__ = ("accepted", "at", "failed", "scale", "tried")

    def __init__(self, accepted: Sequence[float] = (), tried: Sequence[float] = ()) -> None:
        self.accepted = list(accepted) or [0.0] * DEPTHS
        self.tried = list(tried) or [0.0] * DEPTHS
        self.scale, self.at, self.failed = 1.0, 0, 0

    def settle(self) -> None:
        """Make the scale 1 again."""
        self.accepted = [count * self.scale for count in self.accepted]
        self.tried = [count * self.scale for count in self.tried]
        self.scale = 1.0

    def fade(self, share: float) -> None:
        """Let everything count for `share` of what it did."""
        self.scale *= share
        if self.scale < _SMALLEST:
            self.settle()

    def age(self, at: int, share: float) -> None:
        """Fade by `share` for every token since the last time."""
        if at > self.at:
            self.fade(share ** (at - self.at))
            self.at = at

    def add(self, score: Score, share: float) -> None:
        """Count a draft. Where all of it was accepted its end is unknown, which is no failure."""
        self.fade(share)
        one, last = 1 / self.scale, DEPTHS - 1
        for index in range(min(score.accepted + 1, score.length)):
            depth = index if index < last else last
            self.tried[depth] += one
            if index < score.accepted:
                self.accepted[depth] += one


class History:
    """What the drafts of all answers showed."""

    def __init__(
        self,
        tables: dict[Key, Counts] | None = None,
        stops: dict[str, float] | None = None,
        adapters: dict[str, History] | None = None,
    ) -> None:
        self.tables = tables or {}
        self.stops = stops or {}
        """By drafter, the share of the drafts that failed which the model itself ended, not being sure."""
        self.tokens = 0
        """Tokens of all answers."""
        self.adapters = adapters or {}
        """The history of answers with an adapter, by its name; this one is of answers without."""

    def under(self, adapter: str) -> History:
        """Return the history of answers with an adapter; a new one starts with a little of what is known without."""
        if not adapter:
            return self
        if adapter not in self.adapters:
            tables = {}
            for key, counts in self.tables.items():
                counts.settle()
                tables[key] = Counts(counts.accepted, counts.tried)
                tables[key].fade(CARRIED)
            self.adapters[adapter] = History(tables, dict(self.stops))
        return self.adapters[adapter]

    def of(self, key: Key) -> Counts:
        """Return the counts of one kind of draft, aged to now. One that is new is only added when it is counted."""
        counts = self.tables.get(key)
        if counts is None:
            counts = self.tables[key] = Counts()
        counts.age(self.tokens, DOUBT**0.1)
        return counts


class Acceptance:
    """One session's view: this answer's drafts over the shared history."""

    def __init__(self, history: History) -> None:
        self.history = self._plain = history
        self._tables: dict[Key, Counts] = {}
        self._adapters = {"": self._tables}

    def begin(self, adapter: str = "") -> None:
        """Start an answer: its text may be of another kind. adapter: name of the one that answers; empty: none."""
        self.history = self._plain.under(adapter)
        self._tables = self._adapters.setdefault(adapter, {})
        for counts in self._tables.values():
            counts.fade(CARRIED)

    def passed(self, tokens: int) -> None:
        """Tokens were emitted, whoever had drafted them."""
        self.history.tokens += tokens

    def add(self, score: Score) -> None:
        """Learn what became of an offer or a draft."""
        if score.length > 0:
            key = score.drafter, match_bucket(score.match)
            counts = self._of(key)
            counts.failed = 0 if score.accepted else counts.failed + 1
            if counts.failed >= STREAK:
                counts.accepted = [count * TEXT_FADE**2 for count in counts.accepted]
            counts.add(score, TEXT_FADE)
            self.history.of(key).add(score, HISTORY_FADE)

    def ended(self, drafter: str, *, stopped: bool) -> None:
        """A draft ended before its limit: its model stopped, or the target rejected a token."""
        known = self.stops(drafter)
        self.history.stops[drafter] = known + (stopped - known) * (1 - TEXT_FADE)

    def stops(self, drafter: str) -> float:
        """Return the share of the failing drafts that their model ends, so that nothing beyond is paid for."""
        return self.history.stops.get(drafter, 0.0)

    def curve(self, drafter: str, length: int, match: int = 0, *, hope: float = 0.0) -> Iterator[float]:
        """Yield, for each of `length` positions, the chance that the draft is accepted up to and with it.

        It ends at positions that are hardly ever reached. hope: standard deviations added to the expected chance.
        """
        key = drafter, match_bucket(match)
        old, new = self.history.of(key), self._of(key)
        old_scale, new_scale, base, above, chance, alive = old.scale, new.scale, _PRIORS[key[1]], -1.0, 0.0, 1.0
        for depth in range(length):
            if depth < DEPTHS:
                known = old.tried[depth] * old_scale + PRIOR_ROUNDS
                tried = new.tried[depth] * new_scale + PRIOR_ROUNDS
                base = (old.accepted[depth] * old_scale + PRIOR_ROUNDS * base) / known
                # Older answers at this depth, and this one a depth above: a draft that begins well goes on well.
                prior = base if above < 0 else (base + above) / 2
                chance = above = (new.accepted[depth] * new_scale + PRIOR_ROUNDS * prior) / tried
                if hope:
                    variance = above * (1 - above) / (tried + 1)
                    variance += base * (1 - base) / (known + 1) * (PRIOR_ROUNDS / tried) ** 2
                    chance = min(1.0, above + hope * math.sqrt(variance))
            alive *= chance
            yield alive
            if alive < _HARDLY_EVER:
                return

    def _of(self, key: Key) -> Counts:
        counts = self._tables.get(key)
        if counts is None:
            counts = self._tables[key] = Counts()
        counts.age(self.history.tokens, DOUBT)
        return counts


def match_bucket(match: int) -> int:
    """Return the number of the bucket a match of this length falls in."""
    return bisect_left(_LONGEST, match)
