"""The scheduler: each round's drafter and length by expected speed-up, with no speculation as an arm like any other.

S(k) = (1 + Σ_{j≤k} Π_{i≤j} a_i) · (1 + o₀) / (c(k+1) + k·d + o) (goodput, TurboSpec 2406.14066): c, d and o come from
`CostModel`, a from `Acceptance`. What an arm may turn out to be worth (the same S with hopes for a and c) decides where
to look; `Ledger` pays for it. A fold over what it is shown: it has no clock and does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgedecode.decoding.policy import ASKED, MAX_DRAFT, NO_DRAFTER, Offer, Plan, RoundCost, Score, Signals
from edgedecode.decoding.tree import MOST_NODES
from edgedecode.errors import InputError

from .acceptance import Acceptance
from .cost import Prices
from .experience import Experience
from .ledger import INCOME
from .trees import Trees

__all__ = ["Scheduler", "SchedulerOptions"]

SWITCH = 1.05
"""What another arm must promise over the one in use, and any arm over plain decoding: predictions are noisy."""
HOPE = 0.7
"""Standard deviations above the expected acceptance at which an arm is looked at. More: more looks."""
LOOK = 2
"""Tokens drafted at most in a look at a draft model."""
HORIZON = 4
"""An answer is expected to go on for as many tokens as it has, and these: reading the context is paid by what comes."""
READ_WINDOW = 32
"""Where reading all of the context does not pay, a draft model reads this many of its newest tokens."""
SLACK = 1
"""Tokens a draft model may go beyond the best length on average: its confidence stops it, token by token."""
STOP_LOSS = 1.0
"""Plain rounds that the arm in use may lose before it is dropped. More: later to leave a text that changed."""
MOST_REST = 31
"""Rounds at most in which nobody is asked. More: cheaper where nothing pays, slower to notice that something does."""


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """draft_max: longest draft. floor_stop: model drafters may stop by confidence (not under the ratio rule)."""

    draft_max: int = 16
    floor_stop: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 1 to {MAX_DRAFT} for a scheduler")


class _Arm(NamedTuple):
    """A way to draft the next round. Speeds are against plain decoding, reading included."""

    account: str
    speed_up: float
    plan: Plan
    longest: int
    match: int = 0
    unread: int = 0
    """Tokens that its model reads first, beside those of its first step: lost where the text is not the drafter's."""
    horizon: int = 1
    """Tokens that are expected to come, over which reading is spread."""


class Scheduler:
    """Implements `Policy`. `free` and `models` are the names of the drafters there are.

    heads: those of `models` that draft with heads of one model, in groups: what one reads none of the others reads
    again. experience: what is known of this device and these models; the scheduler goes on learning in it.
    """

    def __init__(
        self,
        *,
        free: Sequence[str] = (),
        models: Sequence[str] = (),
        heads: Sequence[Sequence[str]] = (),
        experience: Experience | None = None,
        options: SchedulerOptions | None = None,
    ) -> None:
        self.experience = experience or Experience()
        self.costs, self.ledger = self.experience.costs, self.experience.ledger
        self.acceptance = Acceptance(self.experience.history)
        self.options = options or SchedulerOptions()
        self.free, self.models = frozenset(free), tuple(models)
        self.heads = {name: tuple(group) for group in heads for name in group}
        self.trees = Trees()
        self._current = ""
        self._gained = 0.0
        """Plain rounds that the arm in use gained since it was taken up, without its first reading."""
        self._prices: Prices | None = None
        """Of the last plan."""
        self._context = 1
        self._emitted = 0
        self._unmeasured = 0
        """Rounds since the last plain pass."""

    def begin(self, adapter: str = "") -> int:
        """An answer starts. Return the rounds to rest first: where nothing paid lately, asking costs most at once."""
        self.acceptance.begin(adapter)
        self._current, self._emitted = "", 0
        return min(MOST_REST, self.experience.vain // 2)

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        """Learn from a round, and from offers and other heads' drafts whose tokens were emitted by now."""
        for score in scores:
            self.acceptance.add(score)
        emitted = cost.accepted + 1 + cost.repeats
        self._emitted += emitted
        self._unmeasured = self._unmeasured + 1 if cost.drafted else 0
        self.ledger.earn(emitted)
        if cost.drafted or cost.draft_seconds:
            self._settle(cost)
        if cost.drafter in self.models and not cost.levels:  # nodes of a tree are no positions
            # No draft lives longer than its model is sure of it: where that ended it, one more token counts as refused.
            self.acceptance.add(Score(cost.drafter, cost.drafted + cost.stopped, cost.accepted))
            if cost.stopped or cost.accepted < cost.drafted:
                self.acceptance.ended(cost.drafter, stopped=cost.accepted == cost.drafted)
        self.acceptance.passed(emitted)
        self.costs.observe(cost, context_tokens=self._context)

    def plan(self, signals: Signals) -> Plan:
        """Return the next round's plan."""
        self._context = signals.context_tokens
        self.trees.learn(signals.rates)
        room = min(signals.remaining_tokens - 1, self.options.draft_max)
        if room < 1:
            return Plan(0, reason="end")
        table = self.costs.table(self._context)
        if table.step is None or self.costs.is_due(self._unmeasured, context_tokens=self._context):
            return Plan(0, reason="measuring")
        prices = self._prices = Prices(self.costs, table, table.step)
        arms = [self._of_offer(offer, room, prices) for offer in signals.offers if offer.drafter in self.free]
        of_models = [self._of_model(name, unread, signals, room, prices) for name, unread in signals.unread]
        arms += [arm for arm in of_models if arm is not None]
        plan = self._best(arms) or self._look(arms, prices)
        if plan is None:
            return self._off(prices)
        self.experience.vain = 0
        plan = self._timed(plan)
        if plan.drafter != self._current:
            self._current, self._gained = plan.drafter or "", 0.0
        return plan

    def _best(self, arms: Sequence[_Arm]) -> Plan | None:
        """Return the plan of the arm that promises most; None where that is plain decoding."""
        best, most = None, SWITCH
        for arm in arms:
            worth, able = arm.speed_up, self.ledger.funds(arm.account) > 0
            if arm.plan.drafter == self._current:
                worth *= SWITCH if arm.plan.drafter in self.free else SWITCH**2  # what it has read would be lost
                able = self._gained > -STOP_LOSS
            if worth > most and able:
                best, most = arm.plan, worth
        return best

    def _look(self, arms: Sequence[_Arm], prices: Prices) -> Plan | None:
        """Return the plan of a look at the arm that may turn out best, among those that can pay for it."""
        best, most = None, SWITCH
        for arm in arms:
            if arm.plan.shape is not None:  # its rates are known without it
                continue
            name = arm.plan.drafter or ""
            known, host, step, reading = self._known(name), prices.host(name, least=True), 0.0, 0.0
            if name in self.models:
                step, reading = prices.step(known, least=True), arm.unread * prices.read(known, least=True)
            longest = min(LOOK, arm.longest)
            alive = self.acceptance.curve(name, longest, arm.match, hope=HOPE)
            length, hope = prices.best_length(alive, longest, step=step, host=host, least=True)
            hope = _whole(hope, reading, arm.horizon)
            price = prices.round(length, step=step, host=host) - 1 + reading
            if hope > most and self.ledger.funds(arm.account) >= price:
                best, most = Plan(length, name, read_max=arm.plan.read_max, reason="look"), hope
        return best

    def _of_offer(self, offer: Offer, room: int, prices: Prices) -> _Arm:
        name = offer.drafter
        if (tree := self._of_tree(name, room, prices)) is not None:
            return tree
        longest = min(offer.length, room)
        alive = self.acceptance.curve(name, longest, offer.match)
        length, speed_up = prices.best_length(alive, longest, host=prices.host(name))
        return _Arm(name, speed_up, Plan(length, name, reason="pays"), longest, match=offer.match)

    def _of_model(self, name: str, unread: int, signals: Signals, room: int, prices: Prices) -> _Arm | None:
        known = self._known(name)
        step, read, host = prices.step(known), prices.read(known), prices.host(name)
        horizon = min(signals.remaining_tokens, self._emitted + HORIZON)
        window = min(unread, READ_WINDOW)
        if name in self.trees:
            reading = max(0, window - 1) * read
            return self._of_tree(name, room, prices, level=step, reading=reading, horizon=horizon)
        stops = self.acceptance.stops(name)
        alive = self.acceptance.curve(name, room)
        length, promised = prices.best_length(alive, room, step=step, host=host, stops=stops)
        account = self.heads.get(name, (name,))[0]
        before, read_max = max(0, unread - 1), 0  # its first step reads one along
        speed_up = _whole(promised, before * read, horizon)
        if window < unread and (speed_up < SWITCH or before * read > self.ledger.funds(account)):
            before, read_max = window - 1, READ_WINDOW
            speed_up = _whole(promised, before * read, horizon)
        floor = 0.0
        if self.options.floor_stop:  # its own confidence ends the draft where one more token would not pay
            floor = prices.row(length) * max(1.0, promised)
            length = min(room, length + SLACK)
        plan = Plan(length, name, floor=floor, read_max=read_max, reason="pays")
        return _Arm(account, speed_up, plan, room, unread=before, horizon=horizon)

    def _of_tree(
        self, name: str, room: int, prices: Prices, *, level: float = 0.0, reading: float = 0.0, horizon: int = 1
    ) -> _Arm | None:
        """Return the arm of a drafter's fastest tree, which must promise more: it is the best of many shapes.

        None where it has no tree, or one that does not branch and another arm drafts the same chain for less.
        """
        if name not in self.trees:
            return None
        tree = self.trees.best(name, price=prices.tree(name, level), most=min(room, MOST_NODES))
        if not tree.shape.branches and len(self.free) + len(self.models) > 1:
            return None
        read_max = READ_WINDOW if level else 0
        plan = Plan(len(tree.shape), name, read_max=read_max, reason="pays", shape=tree.shape)
        return _Arm(name, _whole(tree.speed / SWITCH, reading, horizon), plan, room)

    def _known(self, name: str) -> str:
        """Return the head whose times speak for this one: itself, or one of the same model until it was timed."""
        drafts = self.costs.drafts
        return name if name in drafts else next((head for head in self.heads.get(name, ()) if head in drafts), name)

    def _timed(self, plan: Plan) -> Plan:
        """Let a head of the model draft that was never timed, in place of the other one: both say much the same."""
        heads = self.heads.get(plan.drafter or "", ())
        untimed = next((head for head in heads if head not in self.costs.drafts), None)
        if untimed is None or plan.drafter not in self.costs.drafts:
            return plan
        return Plan(plan.draft_max, untimed, floor=plan.floor, read_max=plan.read_max, reason="measuring")

    def _settle(self, cost: RoundCost) -> None:
        """Pay for a round by the clock: what was predicted, times how true predictions were of late. The median of the
        latest rounds is not moved by one that was interrupted."""
        prices, known = self._prices, self._known(cost.drafter)
        if prices is None:
            return
        drafting = reading = 0.0
        if cost.draft_seconds:
            drafting = cost.steps * prices.step(known) / prices.plain
            reading = max(0, cost.read - 2) * prices.read(known) / prices.plain
        predicted = prices.round(cost.width - 1, host=prices.host(cost.drafter)) + drafting + reading
        spent = (cost.pass_seconds + cost.draft_seconds + cost.host_seconds) / prices.seconds / prices.plain
        gain = cost.accepted + 1 - predicted * self.costs.drifted(spent / predicted, cost.drafter)
        self._gained += gain + reading
        self.ledger.settle(self.heads.get(cost.drafter, (cost.drafter,))[0], gain)

    def _off(self, prices: Prices) -> Plan:
        """Decode plainly; rest the longer the more often asking was in vain: it may cost half of the income."""
        self._current = ""
        vain = self.experience.vain = self.experience.vain + 1
        if NO_DRAFTER not in self.costs.host:  # what asking adds is known from a round at rest only
            return Plan(0, rest=1, reason="nothing pays")
        asking = prices.host(ASKED) - prices.host(NO_DRAFTER)
        return Plan(0, rest=min(MOST_REST, vain, max(0, int(2 * asking / INCOME))), reason="nothing pays")


def _whole(speed_up: float, reading: float, horizon: int) -> float:
    """Return a speed-up with the reading before it, spread over the tokens that are expected to come."""
    return horizon / (horizon / speed_up + reading) if reading else speed_up
