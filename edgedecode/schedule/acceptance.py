"""Estimates the chance that a drafted token is accepted, by drafter, match length and depth.

There are two layers of counts. `History` covers all answers; it is shared, kept on disk, and decays slowly.
`Acceptance` covers this answer; it decays fast, with the history as its prior. Deterministic given the scores.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from edgedecode.decoding.policy import Score

PRIORS = {0: 0.5, 1: 0.25, 2: 0.35, 4: 0.5, 8: 0.7, 16: 0.85, 1 << 62: 0.92}
"""Prior chance per token, by upper bound of the match length in tokens; drafters without matches have length 0."""
PRIOR_ROUNDS = 2.0
"""Rounds that the prior counts as in the history, and the history in an answer. Higher: observations count less."""
TEXT_FADE = 0.9
"""Decay per round of an answer's counts. Lower: follows a changing text faster, with more noise."""
HISTORY_FADE = 0.99
"""Decay per round of the history's counts."""
DOUBT = 0.99
"""Decay per emitted token of an answer's counts; the history's is ten times slower. Lower: a drafter that failed is
tried again sooner."""
STREAK = 3
"""Consecutive drafts rejected at their first token after which an answer's accepted counts decay three times as fast:
the text has changed."""
CARRIED = 0.25
"""Weight of an answer's counts in the session's next answer, and of the history in a new kind of answers."""
DOUBTED = 0.5
"""Drafts that the history counts as once it is doubted. With 1, exploration gave up a draft model whose only draft
beside other work had failed."""
DEPTHS = 8
"""Depths with separate counts; deeper positions share the last one."""

_MIN_SCALE, _MIN_CHANCE = 1e-6, 0.02

_LONGEST, _PRIORS = tuple(PRIORS), tuple(PRIORS.values())

Key = tuple[str, int]
"""Drafter and match bucket."""


class Counts:
    """Decaying counts of accepted and tried tokens by depth. at: the token at which they last aged.

    The stored values must be multiplied by `scale`, so that a decay changes one number only.
    """

    __slots__ = ("accepted", "at", "failed", "scale", "tried")

    def __init__(self, accepted: Sequence[float] = (), tried: Sequence[float] = ()) -> None:
        self.accepted = list(accepted) or [0.0] * DEPTHS
        self.tried = list(tried) or [0.0] * DEPTHS
        self.scale, self.at, self.failed = 1.0, 0, 0

    def settle(self) -> None:
        """Apply the scale to the stored values and reset it to 1."""
        self.accepted = [count * self.scale for count in self.accepted]
        self.tried = [count * self.scale for count in self.tried]
        self.scale = 1.0

    def fade(self, share: float) -> None:
        """Multiply all counts by `share`."""
        self.scale *= share
        if self.scale < _MIN_SCALE:
            self.settle()

    def age(self, at: int, share: float) -> None:
        """Fade by `share` per token since the last call."""
        if at > self.at:
            self.fade(share ** (at - self.at))
            self.at = at

    def add(self, score: Score, share: float) -> None:
        """Count a draft. A fully accepted one adds no failure: how far it would have been accepted is unknown."""
        self.fade(share)
        one, last = 1 / self.scale, DEPTHS - 1
        for index in range(min(score.accepted + 1, score.length)):
            depth = index if index < last else last
            self.tried[depth] += one
            if index < score.accepted:
                self.accepted[depth] += one


class History:
    """Outcomes of the drafts of all answers."""

    def __init__(
        self,
        tables: dict[Key, Counts] | None = None,
        stops: dict[str, float] | None = None,
        kinds: dict[str, History] | None = None,
    ) -> None:
        self.tables = tables or {}
        self.stops = stops or {}
        """By drafter, the share of failed drafts that its model ended itself because of low confidence."""
        self.tokens = 0
        """Tokens of all answers."""
        self.kinds = kinds or {}
        """The histories of other kinds of answers (see `Policy.begin`); this one covers those of no kind."""

    def doubt(self) -> None:
        """Let the counts weigh at most `DOUBTED` drafts."""
        for counts in self.tables.values():
            counts.settle()
            counts.fade(min(1.0, DOUBTED / max(_MIN_SCALE, *counts.tried)))
        for history in self.kinds.values():
            history.doubt()

    def under(self, kind: str) -> History:
        """Return the history of a kind of answers; a new one starts with a share of the history of no kind."""
        if not kind:
            return self
        if kind not in self.kinds:
            tables = {}
            for key, counts in self.tables.items():
                counts.settle()
                tables[key] = Counts(counts.accepted, counts.tried)
                tables[key].fade(CARRIED)
            self.kinds[kind] = History(tables, dict(self.stops))
        return self.kinds[kind]

    def of(self, key: Key) -> Counts:
        """Return the counts of one kind of draft, aged to now; they are created if they do not exist."""
        counts = self.tables.get(key)
        if counts is None:
            counts = self.tables[key] = Counts()
        counts.age(self.tokens, DOUBT**0.1)
        return counts


class Acceptance:
    """One session's estimates, from this answer's drafts and the shared history."""

    def __init__(self, history: History) -> None:
        self.history = self._plain = history
        self._tables: dict[Key, Counts] = {}
        self._kinds = {"": self._tables}
        self.counted: dict[str, int] = {}
        """By drafter, the number of outcomes learnt in this session."""

    def begin(self, kind: str = "") -> None:
        """Start an answer of a kind (see `Policy.begin`)."""
        self.history = self._plain.under(kind)
        self.counted = {}
        self._tables = self._kinds.setdefault(kind, {})
        for counts in self._tables.values():
            counts.fade(CARRIED)

    def passed(self, tokens: int) -> None:
        """Count emitted tokens, drafted or not."""
        self.history.tokens += tokens

    def add(self, score: Score) -> None:
        """Learn the outcome of an offer or a draft."""
        if score.length > 0:
            self.counted[score.drafter] = self.counted.get(score.drafter, 0) + 1
            key = score.drafter, match_bucket(score.match)
            counts = self._of(key)
            counts.failed = 0 if score.accepted else counts.failed + 1
            if counts.failed >= STREAK:
                counts.accepted = [count * TEXT_FADE**2 for count in counts.accepted]
            counts.add(score, TEXT_FADE)
            self.history.of(key).add(score, HISTORY_FADE)

    def ended(self, drafter: str, *, stopped: bool) -> None:
        """Count a draft that ended before its limit: its model stopped, or the target rejected a token."""
        known = self.stops(drafter)
        self.history.stops[drafter] = known + (stopped - known) * (1 - TEXT_FADE)

    def stops(self, drafter: str) -> float:
        """Return the share of failing drafts that their model ends itself, which saves the further tokens' costs."""
        return self.history.stops.get(drafter, 0.0)

    def curve(self, drafter: str, length: int, match: int = 0, *, hope: float = 0.0) -> Iterator[float]:
        """Yield, for each of `length` positions, the chance that the draft is accepted up to and with it.

        It ends once that chance is negligible. hope: standard deviations added to the expected chance.
        """
        key = drafter, match_bucket(match)
        old, new = self.history.of(key), self._of(key)
        old_scale, new_scale, base, above, chance, alive = old.scale, new.scale, _PRIORS[key[1]], -1.0, 0.0, 1.0
        for depth in range(length):
            if depth < DEPTHS:
                known = old.tried[depth] * old_scale + PRIOR_ROUNDS
                tried = new.tried[depth] * new_scale + PRIOR_ROUNDS
                base = (old.accepted[depth] * old_scale + PRIOR_ROUNDS * base) / known
                # The prior averages the history at this depth and this answer one depth above, since the acceptance
                # of a draft's tokens is correlated.
                prior = base if above < 0 else (base + above) / 2
                chance = above = (new.accepted[depth] * new_scale + PRIOR_ROUNDS * prior) / tried
                if hope:
                    share = PRIOR_ROUNDS / tried
                    variance = above * (1 - above) / (tried + 1)
                    variance += base * (1 - base) / (known + 1) * (share * share)
                    chance = min(1.0, above + hope * math.sqrt(variance))
            alive *= chance
            yield alive
            if alive < _MIN_CHANCE:
                return

    def _of(self, key: Key) -> Counts:
        counts = self._tables.get(key)
        if counts is None:
            counts = self._tables[key] = Counts()
        counts.age(self.history.tokens, DOUBT)
        return counts


def match_bucket(match: int) -> int:
    """Return the index of the bucket for a match of this length."""
    return bisect_left(_LONGEST, match)
