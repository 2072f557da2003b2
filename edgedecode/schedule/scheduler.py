"""Chooses each round's drafter and draft length by expected speed-up; plain decoding is one of the arms.

S(k) = (1 + Σ_{j≤k} Π_{i≤j} a_i) · (1 + o₀) / (c(k+1) + k·d + o) (goodput, TurboSpec 2406.14066): c, d and o come from
`CostModel`, a from `Acceptance`. An optimistic S, with bounds for a and c, decides which arm to explore, and `Ledger`
limits the cost of exploration. Deterministic given the calls: no clock, no I/O.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgedecode.decoding.policy import (
    ASKED,
    MAX_DRAFT,
    NO_DRAFTER,
    NO_SPEED_UP,
    Offer,
    Plan,
    RoundCost,
    Score,
    Signals,
)
from edgedecode.errors import InputError

from .acceptance import Acceptance
from .cost_table import REFIT
from .draft_cost import GUESS
from .experience import Experience
from .ledger import GRANT, INCOME
from .prices import Prices

SWITCH = 1.05
"""Factor by which an arm's expected speed-up must exceed that of plain decoding, and that of the arm in use, to be
chosen: predictions are noisy."""
HOPE = 0.7
"""Standard deviations above the expected acceptance that exploration assumes. Higher: more exploration."""
EXPLORED_LENGTH = 2
"""Most tokens of an exploratory draft."""
HORIZON = 4
"""An answer is expected to continue for as many tokens as it has, plus these. The gains of a draft model over them must
exceed its prefill."""
READ_WINDOW = 32
"""If a prefill of the full context is not profitable, a draft model reads this many of its most recent tokens."""
MISSED = 16
"""Tokens that lookups would have drafted rightly, at least one each time they were asked, until one of them is drafted
to measure its cost again, whatever is known of it; then twice as many. Higher: false costs are noticed later."""
SLACK = 1
"""Tokens by which a draft may exceed the best average length, because the model's confidence ends it token by token."""
STOP_LOSS = 1.0
"""Baseline rounds that the arm in use may lose before it is dropped. Higher: reacts later to a text that changed."""
DEAR, DEAR_SHARE = 1.6, 0.05
"""For passes of fixed width, as over a network: if a round with one drafted token costs more than `DEAR` plain rounds,
exploration waits until it costs at most `DEAR_SHARE` of the answer so far. The ledger alone would let exploration
double the time of a short answer."""
DOUBT_EVERY = 256
"""Tokens between two probes that the accounts pay for because the machine's speed changed: on a machine that is never
quiet these cost less than 1%."""
ASKING_SHARE = 0.02
"""Share of the time that asking drafters may cost in a text where they propose nothing that pays."""
PROBING = "probing"
"""Reason of a draft that only measures the cost of its pass."""
COLD = 7
"""Plain rounds of a process that are measured together first: four of them took up to three times as long as later
ones."""
MOST_REST = 128
"""Most consecutive rounds in which no drafter is asked. Higher: less overhead, but copies are noticed later."""


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """draft_max: longest draft. floor_stop: model drafters may stop by confidence (not under the ratio rule)."""

    draft_max: int = 16
    floor_stop: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 1 to {MAX_DRAFT} for a scheduler")


class _Arm(NamedTuple):
    """A way to draft the next round. The speed-up is over plain decoding and includes the prefill."""

    account: str
    speed_up: float
    plan: Plan
    longest: int
    alive: Sequence[float] = ()
    """Of a lookup: for each position, the chance that the draft is accepted up to it."""
    unread: int = 0
    """Tokens of its model's prefill, besides those of its first step. Their cost is lost if the drafts are rejected."""
    horizon: int = 1
    """Expected further tokens, over which the cost of the prefill is spread."""


class Scheduler:
    """Implements `Policy`.

    free, models: names of the drafters, without and with a model. experience: what is known about this device and these
    models; updated in place.
    """

    def __init__(
        self,
        *,
        free: Sequence[str] = (),
        models: Sequence[str] = (),
        experience: Experience | None = None,
        options: SchedulerOptions | None = None,
    ) -> None:
        self.experience = experience or Experience()
        self.costs, self.ledger = self.experience.costs, self.experience.ledger
        self.acceptance = Acceptance(self.experience.history)
        self.options = options or SchedulerOptions()
        self.free, self.models = frozenset(free), tuple(models)
        self._current = ""
        self._gained = 0.0
        """Baseline rounds that the arm in use has gained since it was chosen, not counting its prefill."""
        self._won = 0.0
        """Baseline rounds that lookups gained in this answer, less the cost of asking them in vain since."""
        self._prices: Prices | None = None
        """Prices of the last plan."""
        self._context = 1
        self._emitted = self._answered = 0
        """Tokens of this answer, and of all answers of this scheduler."""
        self._unmeasured = 0
        """Rounds since the last baseline pass."""
        self._missed = self._misses = 0
        """Tokens of lookups that would have been accepted since the last draft, and the number of these lookups."""
        self._doubted_at = 0
        """Tokens of all answers when the accounts were last allowed to pay for a probe."""
        self._remembered: dict[tuple[str, bool], tuple[object, tuple[int, float]]] = {}
        """Draft lengths and speed-ups of draft models, expected and hoped for, each with what it was computed from."""
        self._probing = False
        """Whether the last draft is one of these probes."""
        self._patience = MISSED
        """Missed tokens until the next probe."""
        self._models_from = 0
        """`_answered` from which draft models are considered again."""
        self._cold = False
        """Whether this answer began with the first passes of the process."""

    def begin(self, kind: str = "") -> int:
        """Start an answer. Return how many rounds to rest first."""
        self.acceptance.begin(kind)
        self.ledger = self.experience.ledger.under(kind)
        self._current, self._emitted, self._won = "", 0, 0.0
        self._missed = self._misses = 0
        self._remembered.clear()
        self._patience = max(MISSED, self._patience // 2)
        self._cold = not any(table.plain for table in self.costs.tables.values())
        if self._cold:
            return COLD
        return 0 if self._model_pays() else self._rest(self._asking())

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        """Learn from a round, and from scores of offers."""
        for score in scores:
            self.acceptance.add(score)
            if score.drafter in self.free:
                self._missed, self._misses = self._missed + score.accepted, self._misses + 1
        if cost.drafted:
            self._missed = self._misses = 0
        emitted = cost.accepted + 1 + cost.repeats
        self._emitted, self._answered = self._emitted + emitted, self._answered + emitted
        self._unmeasured = self._unmeasured + 1 if cost.drafted else 0
        self.ledger.earn(emitted)
        if cost.drafted or cost.draft_seconds:
            self._settle(cost)
        if cost.drafted and self._probing:
            self.costs.doubt()
            self._patience *= 2
        if cost.drafter in self.models:
            # If low confidence ended the draft, one more token counts as rejected: expected lengths must not exceed
            # those that the model's confidence allows.
            returned = cost.drafted + cost.cut
            self.acceptance.add(Score(cost.drafter, returned + cost.stopped, cost.accepted))
            if cost.stopped or cost.accepted < returned:
                self.acceptance.ended(cost.drafter, stopped=cost.accepted == returned)
        self.acceptance.passed(emitted)
        if self.costs.observe(cost, context_tokens=self._context):  # they were measured beside other work, or this is
            self.costs.doubt()
            if self.experience.history.tokens >= self._doubted_at + DOUBT_EVERY:
                self._doubted_at = self.experience.history.tokens
                self.ledger.doubt()

    def plan(self, signals: Signals) -> Plan:
        """Return the next round's plan."""
        self._context = signals.context_tokens
        room = min(signals.remaining_tokens - 1, self.options.draft_max)
        if room < 1:
            return Plan(0, reason="last token")
        table = self.costs.table(self._context)
        if table.step is None or self.costs.is_due(self._unmeasured, context_tokens=self._context):
            return Plan(0, reason="measuring")
        if self._cold:  # where asking costs as much as a pass, the first ask waits too
            self._cold = False
            return self._plain()
        prices = self._prices = Prices(self.costs, table, table.step)
        arms = [self._of_offer(offer, room, prices) for offer in signals.offers if offer.drafter in self.free]
        if self._answered >= self._models_from or self._current in self.models:
            arms += [self._of_model(name, unread, signals, room, prices) for name, unread in signals.unread]
        plan = self._best(arms) or self._explore(arms, prices) or self._probe(signals.offers, room, prices)
        if plan is None:
            return self._plain()
        self.ledger.empty_rounds = 0
        self._probing = plan.reason == PROBING
        if plan.drafter != self._current:
            self._current, self._gained = plan.drafter or "", 0.0
        return plan

    def _best(self, arms: Sequence[_Arm]) -> Plan | None:
        """Return the plan of the arm with the highest expected speed-up; None if that is plain decoding."""
        best, most = None, SWITCH
        for arm in arms:
            speed_up, funded = arm.speed_up, self.ledger.funds(arm.account) > 0
            if arm.plan.drafter == self._current:
                speed_up *= SWITCH if arm.plan.drafter in self.free else SWITCH**2  # a switch would lose its prefill
                funded = self._gained > -STOP_LOSS
            if speed_up > most and funded:
                best, most = arm.plan, speed_up
        return best

    def _explore(self, arms: Sequence[_Arm], prices: Prices) -> Plan | None:
        """Return the plan of an exploratory draft by the most promising arm whose account can pay for it."""
        best, most, allowed = None, SWITCH, self._allowed(prices)
        for arm in arms:
            if self.ledger.funds(arm.account) <= 0:
                continue
            name = arm.plan.drafter or ""
            host, step, reading = prices.host(name, least=True), 0.0, 0.0
            longest = min(EXPLORED_LENGTH, arm.longest)
            if name in self.models:
                step, reading = prices.step(name, least=True), arm.unread * prices.read(name, least=True)
                length, hope = self._of_draft_model(name, longest, prices, step=step, host=host, least=True)
            else:
                length, hope = prices.best_length(arm.alive[:longest], longest, host=host, least=True)
            hope = _with_prefill(hope, reading, arm.horizon)
            price = prices.round(length, step=step, host=host, least=True) - 1 + reading
            if hope > most and min(allowed, self.ledger.funds(arm.account)) >= price:
                best, most = Plan(length, name, read_max=arm.plan.read_max, reason="exploring"), hope
        return best

    def _allowed(self, prices: Prices) -> float:
        """Return how much a draft that only explores may cost, by `DEAR`."""
        dear = prices.padded and prices.round(1) > DEAR
        return DEAR_SHARE * (self._emitted + HORIZON) if dear else math.inf

    def _probe(self, offers: Sequence[Offer], room: int, prices: Prices) -> Plan | None:
        """Return the plan of a short lookup if many would have been right: its cost may be known wrongly."""
        if self._missed < max(self._patience, self._misses) or not offers:
            return None
        if prices.round(EXPLORED_LENGTH) - 1 > self._allowed(prices):
            return None
        offer = max(offers, key=lambda offer: offer.match)
        return Plan(min(EXPLORED_LENGTH, offer.length, room), offer.drafter, reason=PROBING)

    def _of_offer(self, offer: Offer, room: int, prices: Prices) -> _Arm:
        name = offer.drafter
        longest = min(offer.length, room)
        alive = [*self.acceptance.curve(name, longest, offer.match)]
        length, speed_up = prices.best_length(alive, longest, host=prices.host(name))
        return _Arm(name, speed_up, Plan(length, name, reason="speed-up expected"), longest, alive)

    def _of_model(self, name: str, unread: int, signals: Signals, room: int, prices: Prices) -> _Arm:
        step, read, host = prices.step(name), prices.read(name), prices.host(name)
        horizon = min(signals.remaining_tokens, self._emitted + HORIZON)
        window = min(unread, READ_WINDOW)
        length, promised = self._of_draft_model(name, room, prices, step=step, host=host)
        before, read_max = max(0, unread - 1), 0  # the first step reads the last one
        speed_up = _with_prefill(promised, before * read, horizon)
        if window < unread and (speed_up < SWITCH or before * read > self.ledger.funds(name)):
            before, read_max = window - 1, READ_WINDOW
            speed_up = _with_prefill(promised, before * read, horizon)
        floor = 0.0
        if self.options.floor_stop:  # the model's confidence ends the draft when one more token is not profitable
            floor = prices.more(length, step=step) * max(1.0, promised)
            length = min(room, prices.slack(length, SLACK))
        plan = Plan(length, name, floor=floor, read_max=read_max, reason="speed-up expected")
        return _Arm(name, speed_up, plan, room, unread=before, horizon=horizon)

    def _model_pays(self) -> bool:
        """Return whether a draft model is expected to pay, besides its prefill: an answer is too short to rest then."""
        table = self.costs.table(self._context)
        if table.step is None:
            return False
        prices, longest = Prices(self.costs, table, table.step), self.options.draft_max
        return any(
            self.ledger.funds(name) > 0
            and self._of_draft_model(name, longest, prices, step=prices.step(name), host=prices.host(name))[1] > SWITCH
            for name in self.models
        )

    def _of_draft_model(
        self, name: str, longest: int, prices: Prices, *, step: float, host: float, least: bool = False
    ) -> tuple[int, float]:
        """Return the best draft length and its speed-up without prefill, computed again only if something changed.

        least: with optimistic costs and acceptance.
        """
        counted = self.acceptance.counted.get(name, 0), self._emitted // REFIT  # acceptance ages with the text
        basis = longest, step, host, counted, prices.fitted
        known = self._remembered.get((name, least))
        if known is None or known[0] != basis:
            alive = self.acceptance.curve(name, longest, hope=HOPE if least else 0.0)
            stops = 0.0 if least else self.acceptance.stops(name)
            found = prices.best_length(alive, longest, step=step, host=host, stops=stops, least=least)
            known = self._remembered[name, least] = basis, found
        return known[1]

    def _settle(self, cost: RoundCost) -> None:
        """Add a round's measured gain to its account, in its predicted time times the median error of recent ones."""
        prices, name = self._prices, cost.drafter
        if prices is None:
            return
        drafting = reading = 0.0
        if cost.draft_seconds:
            drafting = cost.steps * prices.step(name) / prices.plain
            reading = max(0, cost.read - 2) * prices.read(name) / prices.plain
        predicted = prices.round(cost.width - 1, host=prices.host(name)) + drafting + reading
        spent = (cost.pass_seconds + cost.draft_seconds + cost.host_seconds) / prices.seconds / prices.plain
        gain = cost.accepted + 1 - predicted * self.costs.drifted(spent / predicted, name)
        self._gained += gain + reading
        if name in self.free:
            self._won = min(GRANT, max(0.0, self._won + gain))
        self.ledger.settle(name, gain)

    def _plain(self) -> Plan:
        """Decode plainly, and rest unless the gains of lookups in this answer pay for asking them again."""
        asking, self._current = self._asking(), ""
        self.ledger.empty_rounds += 1
        self._won = max(0.0, self._won - asking)
        rest = 0 if self._won else self._rest(asking)
        if self.free and asking > ASKING_SHARE:  # lookups may pay in any round; of draft models all is known
            self._models_from = self._answered + 2 * rest
        return Plan(0, rest=rest, reason=NO_SPEED_UP)

    def _rest(self, asking: float) -> int:
        """Return how many rounds to rest: more with each empty round, until asking costs half of the income."""
        worth = max(self.ledger.empty_rounds, int(asking / ASKING_SHARE))
        return min(MOST_REST, worth, max(0, int(2 * asking / INCOME)))

    def _asking(self) -> float:
        """Return the cost of asking drafters that propose nothing that pays, in baseline steps."""
        host, step = self.costs.host, self.costs.table(self._context).step
        asked, plain = (host[name].value if name in host else None for name in (ASKED, NO_DRAFTER))
        if asked is None:
            return 0.0 if step is None else GUESS.draft_seconds / step
        return asked - (plain or 0.0)


def _with_prefill(speed_up: float, reading: float, horizon: int) -> float:
    """Return the speed-up including the prefill's cost, spread over the `horizon` of expected tokens."""
    return horizon / (horizon / speed_up + reading) if reading else speed_up
