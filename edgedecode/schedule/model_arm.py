"""What the scheduler knows of a drafter with a model of its own: what its rounds gave, and when to try it again.

Such a drafter shows what it is worth only when it runs, and must first read what it missed. It is used where what it
gave before pays for its reading, goes off when it no longer does, and is probed; probes may cost a share of all text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .checked_numbers import amount, positive
from .cost import CostModel

__all__ = ["ArmLife", "ModelArm", "Probe", "Use"]

FIRST_DRAFTS = 2
"""Tokens drafted at most until `SCORED` rounds are known."""
SCORED = 8
LONGEST = 16
PROBE_ROUNDS = 3
PROBE_SHARE = 0.0075
"""What probing may cost of the plain time of all text: never slower means that looking must be cheap too."""
PROBE_GRANT = 2.0
"""Plain steps that probing may cost before any text was written."""
FIRST_INTERVAL, LAST_INTERVAL = 16, 512
READ_WINDOW = 48
"""Where reading everything would not pay, only so many of the newest tokens are read."""
HORIZON = 4
"""A generation is expected to go on for as many tokens as it has emitted, and these: reading is paid by what comes."""
SMALL_READ = 8
"""Catching up with this many tokens is no new beginning: it need not be earned first."""
_PRIOR_ROUNDS = 3.0
_PRIOR_TOKENS = 1.65
"""Tokens of a round with one drafted token, before anything was seen."""
_FADE = 0.95
_STREAK = 5
"""Rounds in a row without an accepted token, after which it is off whatever it gave before."""
_NEUTRAL_ROUNDS = 2.0
"""A probe starts from "as fast as plain", with this many rounds' weight, not from the hope of a first round."""
_LIFE_FADE = 0.995
"""Over generations: texts differ, so a new one starts from the mean of some hundred rounds, not from the last ones."""
_LIFE_ROUNDS = 8
UNPROVEN = 1.05
"""What an arm that is not in use must promise."""
LOSING = 0.97
"""Below this its rounds of this generation send it off: bad luck alone reaches a little below 1."""


class Probe(NamedTuple):
    """What a probe is charged, and the cost of a round with one drafted token, in plain steps."""

    price: float
    round_cost: float


class Use(NamedTuple):
    """How the arm may be used in this round. `whole` is the speed-up with the reading in it, spread over what comes."""

    speed_up: float
    whole: float
    draft_max: int
    read_max: int
    reason: str
    probe: Probe | None = None
    """The probe that using it so would begin; None: it is on."""


@dataclass(slots=True)
class ArmLife:
    """What outlives a generation, and is shared by the sessions that draft with one drafter."""

    tokens: float = 0.0
    cost: float = 0.0
    scored: int = 0
    """Rounds it ever had."""
    text: int = 0
    """Tokens of all generations."""
    probed: float = 0.0
    """Plain steps that probes cost in all of them."""
    since: int = 0
    """Tokens since the last probe; not kept."""

    def as_dict(self) -> dict[str, float]:
        """Return what outlives the process."""
        return {
            "life_tokens": self.tokens,
            "life_cost": self.cost,
            "scored": self.scored,
            "text": self.text,
            "probed": self.probed,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, float]) -> ArmLife:
        """Read what `as_dict` gave. Raises KeyError or ValueError."""
        scored = int(amount(value["scored"]))
        counted = positive if scored else amount  # every round emits a token and costs something
        return cls(
            tokens=counted(value["life_tokens"]),
            cost=counted(value["life_cost"]),
            scored=scored,
            text=int(amount(value["text"])),
            probed=amount(value["probed"]),
        )


@dataclass(slots=True)
class ModelArm:
    """One session's counts of a drafter. `tokens`, `cost` fade: emitted tokens, plain steps of this generation."""

    name: str
    life: ArmLife
    tokens: float = 0.0
    cost: float = 0.0
    rounds: int = 0
    on: bool = True
    wait: int = 0
    """Tokens to emit before it may be probed."""
    prior: float = _PRIOR_ROUNDS
    """Rounds' worth of what is expected of it before this generation showed anything."""
    rejected: int = 0
    """Its last rounds without an accepted token."""
    interval: int = FIRST_INTERVAL
    probing: int = 0
    """Rounds left of a probe."""
    emitted: int = 0
    """Tokens of this generation."""

    def begin(self) -> None:
        """A generation starts: the text may be another one, so older rounds are a prior only, and a probe is near."""
        self.emitted = self.probing = self.rounds = self.rejected = 0
        self.tokens = self.cost = 0.0
        self.prior = _PRIOR_ROUNDS
        self.interval, self.wait = FIRST_INTERVAL, 0
        self.on = True

    def passed(self, tokens: int) -> None:
        """Tokens were emitted, by whomever."""
        self.emitted += tokens
        self.life.text += tokens
        self.life.since += tokens
        self.wait = max(0, self.wait - tokens)

    def add(self, tokens: int, cost: float) -> None:
        """A round of this drafter emitted `tokens` and cost so many plain steps."""
        self.tokens = _FADE * self.tokens + tokens
        self.cost = _FADE * self.cost + cost
        self.rounds += 1
        self.rejected = 0 if tokens > 1 else self.rejected + 1
        self.life.tokens = _LIFE_FADE * self.life.tokens + tokens
        self.life.cost = _LIFE_FADE * self.life.cost + cost
        self.life.scored += 1
        self.probing = max(0, self.probing - 1)

    def speed_up(self, costs: CostModel, context_tokens: int) -> float:
        """Return what its rounds gave, without reading: tokens over plain steps, leaning on a prior."""
        if self.life.scored >= _LIFE_ROUNDS:
            tokens, cost = self.life.tokens, self.life.cost
        else:
            tokens = _PRIOR_TOKENS
            cost = costs.table(context_tokens).c(2) + costs.d(self.name, context_tokens)
        weight = self.prior * min(2.5, 1 + self.life.scored / 50) / cost
        return (self.tokens + weight * tokens) / (self.cost + weight * cost) if self.cost or weight else 1.0

    def judge(self, costs: CostModel, context_tokens: int, *, current: bool = False) -> None:
        """Go off where its rounds lose, to be probed before it is used again; once a round, before `use`.

        current: whether it drafted the last rounds; then it stays until it loses, else it must promise something.
        """
        speed_up = self.speed_up(costs, context_tokens)
        loses = speed_up < (LOSING if current else UNPROVEN) or self.rejected >= _STREAK
        if self.on and not self.probing and loses:
            self.on = False
            self.wait, self.interval = self.interval, min(2 * self.interval, LAST_INTERVAL)
        elif self.rounds and speed_up > UNPROVEN:
            self.interval = FIRST_INTERVAL

    def use(self, unread: int, *, costs: CostModel, context_tokens: int, remaining_tokens: int) -> Use | None:
        """Return how to use it in this round; None: it is off, or reading would cost more than it promises.

        It changes nothing: whoever uses the arm so calls `begin_probe` where there is one.
        """
        probe = None if self.on else self._probe(unread, costs=costs, context_tokens=context_tokens)
        if not self.on and probe is None:
            return None
        speed_up = self.speed_up(costs, context_tokens)
        reading = costs.reading(self.name, context_tokens)
        probing = bool(self.probing or probe)
        longest = FIRST_DRAFTS if self.life.scored < SCORED or probing else LONGEST
        horizon = min(remaining_tokens, self.emitted + HORIZON)
        for read, read_max in ((unread, 0), (min(unread, READ_WINDOW), READ_WINDOW)):
            whole = horizon / (horizon / speed_up + max(0, read - 1) * reading)
            if whole > (LOSING if read <= SMALL_READ else 1.0) or (probing and read <= READ_WINDOW):
                reason = "probe" if probing else "pays"
                return Use(speed_up, whole, longest, read_max if unread > read else 0, reason, probe)
        return None

    def _probe(self, unread: int, *, costs: CostModel, context_tokens: int) -> Probe | None:
        """Return the probe whose time has come and which the text has earned, if there is one."""
        if self.wait:
            return None
        round_cost = costs.table(context_tokens).c(2) + costs.d(self.name, context_tokens)
        reading = costs.reading(self.name, context_tokens)
        price = min(unread, READ_WINDOW) * reading + PROBE_ROUNDS * (round_cost - 1)
        life = self.life
        earned = life.probed + price <= PROBE_GRANT + PROBE_SHARE * life.text or life.since >= LAST_INTERVAL
        return Probe(price, round_cost) if earned else None

    def begin_probe(self, probe: Probe) -> None:
        """Go on for a probe, and charge it. It starts from "as fast as plain", not from what sent the arm off."""
        self.on, self.probing = True, PROBE_ROUNDS
        self.rejected = self.life.since = 0
        self.life.probed += probe.price
        self.tokens = self.cost = _NEUTRAL_ROUNDS * probe.round_cost
        self.prior = 0.0
