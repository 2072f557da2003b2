"""A machine without noise: what rounds cost is a formula, what drafters say is a script, the policy is the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from edgedecode.decoding.counterfactual import OpenOffers
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import ASKED, NO_DRAFTER, FixedLength, Offer, Plan, Policy, RoundCost, Score, Signals

Accepts = Callable[[int], bool]
"""position of the text → whether a draft of that token would be right"""

STEP = 0.015
"""Seconds of a plain pass."""


def never(place: int) -> bool:
    return False


def always(place: int) -> bool:
    return True


@dataclass(frozen=True)
class Machine:
    """Costs in plain passes: a row more, a drafted token, a token read by the draft model, the host's round, and what
    asking drafters adds to that."""

    row: float = 0.35
    draft: float = 0.15
    read: float = 0.05
    host: float = 0.005
    asking: float = 0.01
    trimmed: float = 0.6

    def c(self, width: int) -> float:
        return 1 + self.row * (width - 1)


@dataclass
class Ride:
    """What a run of the virtual machine was: its cost in plain passes, and every round's plan and acceptance."""

    cost: float = 0.0
    plans: list[Plan] = field(default_factory=list)
    signals: list[Signals] = field(default_factory=list)
    rounds: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Place in the text, drafter, drafted, accepted."""

    def used(self, drafter: str) -> list[int]:
        """Return the places at which this drafter drafted."""
        return [place for place, name, drafted, _ in self.rounds if name == drafter and drafted]


def ride(
    policy: Policy,
    *,
    tokens: int,
    machine: Machine | None = None,
    free: Accepts | None = None,
    model: Accepts | None = None,
    trim: Accepts | None = None,
    match: int = 3,
    prompt: int = 32,
) -> Ride:
    """Generate `tokens` tokens after a prompt: token i of the text is i, a wrong draft is -1.

    free, model, trim: whether the drafter is right at a place; None: there is no such drafter. The last is the model's
    smaller head, which takes `machine.trimmed` of its time.
    """
    machine = machine or Machine()
    result, offers, costs, scores, unread, rest = Ride(), OpenOffers(), list[RoundCost](), list[Score](), prompt, 0
    text = list(range(prompt + 1))
    models = {key: accepts for key, accepts in (("trim", trim), ("model", model)) if accepts is not None}
    rounds, rested, end = 0, 0, prompt + tokens
    while len(text) < end:
        rounds += 1
        room = end - len(text) - 1
        drafts = {} if free is None else {"free": _draft(free, text, min(room, 16), match)}
        chosen, read, drafting = Draft(), 0, 0.0
        name = NO_DRAFTER
        if rest:
            rest, rested = rest - 1, rested + 1
        else:
            rested = 0
            name = NO_DRAFTER if isinstance(policy, FixedLength) else ASKED
            signals = Signals(
                round=rounds,
                context_tokens=len(text),
                remaining_tokens=room + 1,
                offers=tuple(Offer(key, len(draft), draft.match) for key, draft in drafts.items() if len(draft)),
                unread=tuple((key, unread) for key in models),
                costs=tuple(costs),
                scores=(*offers.settle(text), *scores),
            )
            costs.clear()
            scores.clear()
            plan = policy.plan(signals)
            result.plans.append(plan)
            result.signals.append(signals)
            rest = plan.rest
            for key, draft in drafts.items():
                if len(draft):
                    offers.add(key, draft, at=len(text))
            length = min(plan.draft_max, room)
            if length > 0 and plan.drafter == "free":
                chosen, name = drafts["free"].cut(length), "free"
            elif length > 0:
                name = plan.drafter or NO_DRAFTER
                read = min(unread, plan.read_max or unread)
                chosen, unread = _draft(models[name], text, length, 0), 0
                step = machine.draft * (machine.trimmed if name == "trim" else 1.0)
                drafting = max(0, read - 1) * machine.read + len(chosen) * step
        accepted = _accepted(chosen, text)
        if chosen and len(models) > 1 and name in models:  # what the other head would have been worth
            (other,) = models.keys() - {name}
            scores.append(Score(other, len(chosen), _accepted(_draft(models[other], text, len(chosen), 0), text)))
        cost = machine.c(1 + len(chosen))
        host = machine.host + (machine.asking if name != NO_DRAFTER else 0.0)
        result.cost += cost + drafting + host
        result.rounds.append((len(text) - prompt - 1, name, len(chosen), accepted))
        text += range(len(text), len(text) + accepted + 1)
        unread = 1 if name in models else unread + accepted + 1
        if rested > 1:  # as `Drafting` tells it: of a rest the first round, and how many followed
            costs[-1] = replace(costs[-1], repeats=rested - 1)
            continue
        costs.append(
            RoundCost(
                width=1 + len(chosen),
                pass_seconds=cost * STEP,
                host_seconds=host * STEP,
                drafter=name,
                drafted=len(chosen),
                accepted=accepted,
                read=read,
                draft_seconds=drafting * STEP,
                match=chosen.match,
            )
        )
    return result


def _draft(right: Accepts, text: Sequence[int], length: int, match: int) -> Draft:
    place = len(text)
    tokens = tuple(place + index if right(place + index) else -1 for index in range(length))
    return Draft(tokens, match=match)


def _accepted(draft: Draft, text: Sequence[int]) -> int:
    place = len(text)
    return next((index for index, token in enumerate(draft.tokens) if token != place + index), len(draft))
