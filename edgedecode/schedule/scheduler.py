"""The scheduler: each round's drafter and length by predicted speed-up, with no speculation as an arm like any other.

S(k) = (1 + Σ_{j≤k} Π_{i≤j} a_i) · (1 + o₀) / (c(k+1) + k·d + o) (goodput, TurboSpec 2406.14066): c, d and o come from
`CostModel`, a from `Survival`. A fold over signals: same signals, same plans. It has no clock and does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgedecode.decoding.policy import MAX_DRAFT, NO_DRAFTER, Offer, Plan, RoundCost, Score, Signals
from edgedecode.decoding.tree import MOST_NODES
from edgedecode.errors import InputError

from .experience import Experience
from .head_arms import Variants
from .model_arm import SCORED, Probe, Use
from .tree_arms import MARGIN, TreeArms, TreeChoice

__all__ = ["Scheduler", "SchedulerOptions"]

SWITCH = 1.05
"""Another arm, or any arm instead of none, must promise this much more: predictions are noisy."""
LOOK_SHARE = 0.004
"""What asking drafters in vain may cost of the plain time, once `LOOK_GRANT` is spent: a small model feels it."""
LOOK_GRANT = 0.1
"""Plain steps that asking in vain may cost since a draft last paid, before it is done more rarely."""
MOST_REST = 15
SLACK = 1
"""Tokens a drafter with a stop of its own may go beyond what pays on average: it knows better, token by token."""
FIRST_REACH = 2
"""Tokens a free drafter may draft at first in a generation: what it was worth in other texts is a guess in this one."""
REMEASURE = 256
"""Rounds without a draft, after which one free token is drafted: what passes cost may be known from a bad moment."""
_JUDGED = 8
"""Rounds that drafted, after which their measured times are compared with what was predicted of them."""
_UNTRUE = 1.25
_PENALTY = 16


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """draft_max: longest draft. floor_stop: model drafters may stop by confidence (not under the ratio rule)."""

    draft_max: int = 16
    floor_stop: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 1 to {MAX_DRAFT} for a scheduler")


class _Choice(NamedTuple):
    drafter: str
    """The arm; of one with several heads the plan names the one that drafts."""
    length: int
    speed_up: float
    """Against plain decoding, from here on."""
    rank: float
    """Against the other arms, with what taking it up costs, and what a tree must have over a chain."""
    plan: Plan
    probe: Probe | None = None
    """What taking it begins, of an arm that is off."""


class Scheduler:
    """Implements `Policy`. `free` and `models` are the names of the drafters there are.

    heads: those of `models` that draft with heads of one model, in groups: each group is one arm, named by its first.
    experience: what is known of this device and these models; the scheduler goes on learning in it.
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
        self.costs, self.survival = self.experience.costs, self.experience.survival
        self.options = options or SchedulerOptions()
        grouped = {name for group in heads for name in group}
        self.variants = Variants([*heads, *([name] for name in models if name not in grouped)], self.costs)
        self.models = {name: self.experience.arm(name) for name in self.variants.arms}
        self.free = frozenset(free)
        self.trees = TreeArms()
        self._current: str | None = None
        self._looked = 0.0
        """Plain steps that asking in vain cost since a draft last paid."""
        self._measured = _Measured()
        self._reach: dict[str, int] = {}
        """Per free drafter the longest draft it may give: it starts small, and doubles with every draft that holds."""
        self._context = 1
        self._unmeasured = 0
        """Rounds since the last plain pass."""
        self._undrafted = 0
        """Rounds since the last pass that was none."""

    def plan(self, signals: Signals) -> Plan:
        """Return the next round's plan; learns from the rounds since the last call first."""
        self._context = signals.context_tokens
        if signals.round == 1:
            self._begin()
        for score in signals.scores:
            self.survival.add(score)
        for cost in signals.costs:
            self._learn(cost)
        self.trees.learn(signals.rates)
        room = min(signals.remaining_tokens - 1, self.options.draft_max)
        if room < 1:
            return Plan(0, reason="end")
        if self.costs.table(self._context).is_due(self._unmeasured):
            return Plan(0, reason="measuring")
        if self._undrafted >= REMEASURE and (offer := next(iter(signals.offers), None)) is not None:
            self._undrafted = 0
            return Plan(1, offer.drafter, reason="measuring")
        if self._measured.penalty:
            self._measured.penalty -= 1
            self._current = None
            return Plan(0, reason="measured slower")
        for name, _ in signals.unread:
            if (arm := self.models.get(name)) is not None:
                arm.judge(self.costs, self._context, current=name == self._current)
        choice = self._best(signals, room)
        if choice is None:
            return self._off()
        self._looked = 0.0
        self._current = choice.drafter
        if choice.probe is not None:
            self.models[choice.drafter].begin_probe(choice.probe)
        return choice.plan

    def _begin(self) -> None:
        """A generation starts: what older ones showed counts, but less than what this one will show."""
        self.survival.begin()
        for arm in self.models.values():
            arm.begin()
        self._current, self._looked, self._measured = None, 0.0, _Measured()
        self._reach.clear()

    def _off(self) -> Plan:
        self._current = None
        price = self.costs.asking(self._context)
        self._looked += price
        rest = min(MOST_REST, int(price / LOOK_SHARE)) if self._looked > LOOK_GRANT else 0
        if NO_DRAFTER not in self.costs.host:  # what asking adds is known from a round at rest only
            rest = 1
        return Plan(0, rest=rest, reason="nothing pays")

    def _best(self, signals: Signals, room: int) -> _Choice | None:
        """Return the arm to use, or None for plain decoding."""
        choices = [self._of_offer(offer, room) for offer in signals.offers if offer.drafter in self.free]
        of_models = [self._of_model(name, unread, signals, room) for name, unread in signals.unread]
        choices += [choice for choice in of_models if choice is not None]
        if not choices:
            return None
        best = max(choices, key=lambda choice: choice.rank * (SWITCH if choice.drafter == self._current else 1.0))
        if best.plan.reason == "probe":
            return best
        if best.drafter != self._current:
            return best if best.speed_up > SWITCH else None
        return best if best.drafter in self.models or best.speed_up > 1.0 else None  # a model arm goes off by itself

    def _of_offer(self, offer: Offer, room: int) -> _Choice:
        reach = self._reach.get(offer.drafter, FIRST_REACH)
        alive = self.survival.curve(offer.drafter, min(offer.length, room, reach), offer.match)
        length, speed_up = self.best_length(alive, drafter=offer.drafter)
        if offer.drafter in self.trees:
            tree = self._tree(offer.drafter, room)
            if tree.proven and tree.speed_up > MARGIN * speed_up:
                plan = Plan(len(tree.shape), offer.drafter, reason="pays", shape=tree.shape)
                return _Choice(offer.drafter, len(tree.shape), tree.speed_up, tree.speed_up / MARGIN, plan)
        return _Choice(offer.drafter, length, speed_up, speed_up, Plan(length, offer.drafter, reason="pays"))

    def _tree(self, drafter: str, room: int) -> TreeChoice:
        model = drafter in self.models
        most = min(room, MOST_NODES)
        return self.trees.best(drafter, costs=self.costs, context_tokens=self._context, most=most, model=model)

    def _of_model(self, name: str, unread: int, signals: Signals, room: int) -> _Choice | None:
        arm = self.models.get(name)
        if arm is None:
            return None
        use = arm.use(unread, costs=self.costs, context_tokens=self._context, remaining_tokens=signals.remaining_tokens)
        if use is None:
            return None
        longest = min(room, use.draft_max)
        if name in self.trees:
            return self._of_tree(name, use, longest)
        drafter = self.variants.choose(name, lambda each: self._promise(each, longest)[1])
        length, _ = self._promise(drafter, longest)
        floor = 0.0
        if self.options.floor_stop:  # its own confidence ends the draft where one more token would not pay
            length = min(longest, length + (SLACK if self.models[name].life.scored else 0))
            floor = self._row_cost(length) * max(1.0, use.speed_up)
        plan = Plan(length, drafter, floor=floor, read_max=use.read_max, reason=use.reason)
        return _Choice(name, length, use.speed_up, use.whole, plan, use.probe)

    def _promise(self, drafter: str, longest: int) -> tuple[int, float]:
        return self.best_length(self.survival.curve(drafter, longest), drafter=drafter)

    def _of_tree(self, name: str, use: Use, most: int) -> _Choice | None:
        """Choose by what the tree's guesses were worth, in chains too; once it ran, by no more than that gave.

        None where it promises too little more than the chains of another arm.
        """
        tree = self._tree(name, most)
        if len(self.models) > 1 and not tree.proven:
            return None
        speed_up = tree.speed_up if self.models[name].rounds < SCORED else min(tree.speed_up, use.speed_up)
        plan = Plan(len(tree.shape), name, read_max=use.read_max, reason=use.reason, shape=tree.shape)
        return _Choice(name, len(tree.shape), speed_up, use.whole * speed_up / use.speed_up / MARGIN, plan, use.probe)

    def best_length(self, alive: Sequence[float], *, drafter: str) -> tuple[int, float]:
        """Return the length of the best S for a draft with these chances of survival, and that S; at least 1."""
        table = self.costs.table(self._context)
        d, o = self._d(drafter), self._o(drafter)
        plain = 1 + self._o(NO_DRAFTER)
        best_length, best, tokens = 1, 0.0, 1.0
        for length, chance in enumerate(alive, start=1):
            tokens += chance
            speed_up = tokens * plain / (table.c(length + 1) + length * d + o)
            if speed_up > best:
                best_length, best = length, speed_up
        return best_length, best

    def _row_cost(self, length: int) -> float:
        """Return what one more drafted token costs once it is drafted, in plain steps: its row in the target's pass."""
        table = self.costs.table(self._context)
        return (table.c(length + 2) - table.c(2)) / max(1, length)

    def _d(self, drafter: str) -> float:
        return self.variants.d(drafter, self.costs, self._context) if drafter in self.variants else 0.0

    def _o(self, drafter: str) -> float:
        return self.costs.o(drafter, self._context)

    def _predicted(self, cost: RoundCost) -> float:
        """Return what such a round costs by what is known now, in plain passes and without reading."""
        steps = max(1, cost.levels or cost.drafted)
        return self.costs.table(self._context).c(cost.width) + steps * self._d(cost.drafter) + self._o(cost.drafter)

    def _learn(self, cost: RoundCost) -> None:
        self._unmeasured = self._unmeasured + 1 if cost.drafted else 0
        self._undrafted = 0 if cost.drafted else self._undrafted + 1 + cost.repeats
        self.costs.observe(cost, context_tokens=self._context)
        if cost.drafted and (step := self.costs.table(self._context).step) is not None:
            self._measured.add(cost, self._predicted(cost) * step)
        if cost.drafted and cost.drafter in self.free:
            reach = self._reach.get(cost.drafter, FIRST_REACH)
            self._reach[cost.drafter] = (
                2 * reach if cost.accepted == cost.drafted else max(2, min(reach, 2 * cost.accepted))
            )
        arm = self.models.get(self.variants.arm_of(cost.drafter) or "")
        if arm is not None:
            self.variants.used(cost.drafter)
            if not cost.levels:  # nodes of a tree are no positions
                self.survival.add(Score(cost.drafter, cost.drafted, cost.accepted))
            arm.add(cost.accepted + 1, self._predicted(cost) / (1 + self._o(NO_DRAFTER)))
        for other in self.models.values():
            other.passed(cost.accepted + 1 + cost.repeats)


@dataclass(slots=True)
class _Measured:
    """The safety net: rounds that drafted, by the clock and by the cost model. Where the clock says much more, all is
    off for a while: predictions that do not come true choose nothing well."""

    rounds: int = 0
    seconds: float = 0.0
    predicted: float = 0.0
    penalty: int = 0
    _next: int = _PENALTY

    def add(self, cost: RoundCost, predicted_seconds: float) -> None:
        self.rounds += 1
        self.predicted += predicted_seconds
        reading = cost.draft_seconds if cost.read <= 2 else 0.0  # reading is weighed before it is done, once
        self.seconds += cost.pass_seconds + cost.host_seconds + reading
        if self.rounds < _JUDGED:
            return
        if self.seconds > _UNTRUE * self.predicted:
            self.penalty, self._next = self._next, min(2 * self._next, 512)
        else:
            self._next = _PENALTY
        self.rounds, self.seconds, self.predicted = 0, 0.0, 0.0
