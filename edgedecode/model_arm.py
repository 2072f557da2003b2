"""What the scheduler knows of a drafter with a model of its own: what its rounds gave, and when to try it again.

Such a drafter shows what it is worth only when it runs, and must first read what it missed. So it is tried early, goes
off when it does not pay, and is probed at intervals that double; a probe may not cost more than a share of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from edgedecode.cost import CostModel

__all__ = ["ModelArm", "Use"]

FIRST_DRAFTS = 2
"""Tokens drafted at most until `SCORED` rounds are known."""
SCORED = 8
LONGEST = 8
PROBE_ROUNDS = 3
PROBE_SHARE = 0.01
"""What probing may cost of the text's plain time: never slower means that looking must be cheap too."""
FIRST_INTERVAL, LAST_INTERVAL = 16, 512
READ_WINDOW = 48
"""Where reading everything would not pay, only so many of the newest tokens are read."""
HORIZON = 32
"""A generation is expected to go on for as many tokens as it has emitted, and at least these."""
UNTRIED = 0.9
"""An arm that was never tried may promise less than plain decoding: one round tells more than any prior."""
_PRIOR_ROUNDS = 2.0
_PRIOR_TOKENS = 1.65
"""Tokens of a round with one drafted token, before anything was seen."""
_FADE = 0.9
_SMALL_READ = 8


class Use(NamedTuple):
    """How the arm may be used in this round."""

    speed_up: float
    draft_max: int
    read_max: int
    reason: str


@dataclass(slots=True)
class ModelArm:
    """Counts of one drafter. `tokens` and `cost` fade: emitted tokens and plain steps of its rounds."""

    name: str
    tokens: float = 0.0
    cost: float = 0.0
    scored: int = 0
    on: bool = True
    wait: int = 0
    """Tokens to emit before it may be probed."""
    interval: int = FIRST_INTERVAL
    probing: int = 0
    """Rounds left of a probe."""
    emitted: int = 0

    @property
    def trying(self) -> bool:
        """Whether it is used to learn, whatever it promises: never tried, or in a probe."""
        return self.probing > 0 or self.scored == 0

    def begin(self) -> None:
        """A generation starts: the text may be another one, so the next probe is near again."""
        self.emitted = 0
        if not self.on:
            self.interval, self.wait = FIRST_INTERVAL, min(self.wait, FIRST_INTERVAL)

    def passed(self, tokens: int) -> None:
        """Tokens were emitted, by whomever."""
        self.emitted += tokens
        self.wait = max(0, self.wait - tokens)

    def add(self, tokens: int, cost: float) -> None:
        """A round of this drafter emitted `tokens` and cost so many plain steps."""
        self.tokens = _FADE * self.tokens + tokens
        self.cost = _FADE * self.cost + cost
        self.scored += 1
        self.probing = max(0, self.probing - 1)

    def use(self, unread: int, *, costs: CostModel, context_tokens: int, remaining_tokens: int) -> Use | None:
        """Return how to use it in this round; None: it is off, or reading would cost more than it promises."""
        prior_cost = costs.table(context_tokens).c(2) + costs.d(self.name, context_tokens)
        speed_up = (self.tokens + _PRIOR_ROUNDS * _PRIOR_TOKENS) / (self.cost + _PRIOR_ROUNDS * prior_cost)
        if self.on and self.probing == 0:
            if speed_up < (UNTRIED if self.scored == 0 else 1.0):
                self._go_off()
            elif self.scored:
                self.interval = FIRST_INTERVAL
        reading = costs.reading(self.name, context_tokens)
        if not self.on and not self._probes(unread, reading, prior_cost):
            return None
        if self.probing:
            reading_max = 0 if unread <= READ_WINDOW else READ_WINDOW
            return Use(speed_up, FIRST_DRAFTS, reading_max, "probe")
        horizon = min(remaining_tokens, max(HORIZON, self.emitted))
        gain = horizon * (1 - 1 / max(speed_up, 1.02))
        if unread <= _SMALL_READ or unread * reading < gain:
            read_max = 0
        elif min(unread, READ_WINDOW) * reading < gain:
            read_max = READ_WINDOW
        else:
            return None
        return Use(speed_up, FIRST_DRAFTS if self.scored < SCORED else LONGEST, read_max, "pays")

    def _go_off(self) -> None:
        self.on = False
        self.wait, self.interval = self.interval, min(2 * self.interval, LAST_INTERVAL)

    def _probes(self, unread: int, reading: float, prior_cost: float) -> bool:
        """Begin a probe when its time has come and its cost is earned."""
        if self.wait:
            return False
        price = min(unread, READ_WINDOW) * reading + PROBE_ROUNDS * (prior_cost - 1)
        if self.emitted * PROBE_SHARE < price and self.interval < LAST_INTERVAL:
            self.wait, self.interval = self.interval, min(2 * self.interval, LAST_INTERVAL)
            return False
        self.on, self.probing = True, PROBE_ROUNDS
        self.tokens = self.cost = 0.0
        return True
