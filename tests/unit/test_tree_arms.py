"""Trees as arms of the scheduler: chosen only where they promise 3% more than the best chain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from edgedecode.decoding.policy import FixedTree, Offer, Plan, RoundCost, Score, Signals
from edgedecode.decoding.tree import RankRates, ShapedTree, depths
from edgedecode.schedule.cost import REFIT
from edgedecode.schedule.scheduler import Scheduler
from edgedecode.schedule.trees import Trees

STEP = 0.01
FLAT, STEEP = 0.02, 0.5
"""Cost of one more row, in plain passes."""
UNSURE: RankRates = ((0.45, 0.3, 0.15),) * 4
"""Second guesses are often right."""
SURE: RankRates = ((0.9, 0.02, 0.0),) * 4
"""Only the first guess is ever right."""


def cost(width: int, *, row: float, **others: object) -> RoundCost:
    return RoundCost(width=width, pass_seconds=STEP * (1 + row * (width - 1)), host_seconds=STEP / 100, **others)  # type: ignore[arg-type]


def signals(**others: object) -> Signals:
    return Signals(context_tokens=64, remaining_tokens=64, **others)  # type: ignore[arg-type]


def train(scheduler: Scheduler, *, row: float) -> None:
    """Let the scheduler observe the cost of passes of every width, plain ones last."""
    costs = [cost(1, row=row)] * 4
    for width in (2, 3, 5, 9, 17):
        costs += [cost(width, row=row)] * 8
    for each in costs:
        scheduler.observe(each)
    scheduler.begin()
    scheduler.observe(cost(1, row=row))


@pytest.mark.parametrize(("rates", "row", "tree"), [(UNSURE, FLAT, True), (UNSURE, STEEP, False), (SURE, FLAT, False)])
def test_scheduler_gives_a_free_drafter_a_tree_only_where_it_promises_more(
    rates: RankRates, row: float, tree: bool
) -> None:
    scheduler = Scheduler(free=["recycle"])
    train(scheduler, row=row)
    plan = scheduler.plan(signals(offers=(Offer("recycle", 8),), rates=(("recycle", rates),)))
    assert (plan.shape is not None and plan.shape.branches) is tree
    if tree:
        assert plan.shape is not None
        assert plan.drafter == "recycle"
        assert len(plan.shape) == plan.draft_max


def drive(scheduler: Scheduler, *, row: float, rates: RankRates, rounds: int) -> list[Plan]:
    """Run rounds of a chain arm and a tree arm on one draft model; acceptance follows the rates exactly."""
    train(scheduler, row=row)
    plans, credit = list[Plan](), 0.0
    for number in range(rounds):
        shown = (("tree", rates),) if number == 0 else ()
        plan = scheduler.plan(signals(unread=(("model", 1), ("tree", 1)), rates=shown))
        plans.append(plan)
        levels = 0 if plan.shape is None else 1 + max(depths(plan.shape.parents))
        rate = sum(rates[0]) if plan.shape is not None and plan.shape.branches else rates[0][0]
        accepted, most = 0, levels or plan.draft_max
        while accepted < most:
            credit += rate
            if credit < 1:
                break
            credit -= 1
            accepted += 1
        drafting = STEP * 0.05 * (levels or plan.draft_max)
        scheduler.observe(
            cost(
                plan.draft_max + 1,
                row=row,
                drafter=plan.drafter or "none",
                drafted=plan.draft_max,
                accepted=accepted,
                read=1 if plan.draft_max else 0,
                draft_seconds=drafting,
                levels=levels if plan.shape is not None and plan.shape.branches else 0,
            )
        )
    return plans


def test_scheduler_takes_the_models_tree_where_second_guesses_are_profitable() -> None:
    plans = drive(Scheduler(models=["model", "tree"]), row=FLAT, rates=UNSURE, rounds=120)
    late = [plan for plan in plans[60:] if plan.drafter == "tree"]
    assert len(late) > 40
    assert all(plan.shape is not None and plan.shape.branches for plan in late)


@pytest.mark.parametrize(("rates", "row"), [(SURE, FLAT), (SURE, STEEP / 2)])
def test_scheduler_keeps_the_chain_where_only_first_guesses_are_right(rates: RankRates, row: float) -> None:
    plans = drive(Scheduler(models=["model", "tree"]), row=row, rates=rates, rounds=120)
    assert sum(plan.drafter == "model" for plan in plans[20:]) > 90
    assert not any(plan.drafter == "tree" for plan in plans[20:])


def test_scheduler_disables_a_tree_that_is_never_profitable() -> None:
    plans = drive(Scheduler(models=["tree"]), row=0.9, rates=((0.1, 0.05, 0.0),) * 4, rounds=120)
    assert sum(plan.draft_max > 0 for plan in plans) < 12


def test_scheduler_rounds_with_trees_replay_from_json() -> None:
    plans, calls = list[Plan](), list[bytes]()
    recorded, again = Scheduler(models=["model", "tree"]), Scheduler(models=["model", "tree"])
    ask, learn = recorded.plan, recorded.observe

    def plan(given: Signals) -> Plan:
        calls.append(msgspec.json.encode(given))
        plans.append(ask(given))
        return plans[-1]

    def observe(given: RoundCost, scores: Sequence[Score] = ()) -> None:
        calls.append(msgspec.json.encode(given))
        learn(given, scores)

    recorded.plan, recorded.observe = plan, observe  # type: ignore[method-assign]
    drive(recorded, row=FLAT, rates=UNSURE, rounds=60)
    assert any(plan.shape is not None for plan in plans)
    replayed = []
    for call in calls:
        if b"pass_seconds" in call:
            again.observe(msgspec.json.decode(call, type=RoundCost))
        else:
            replayed.append(again.plan(msgspec.json.decode(call, type=Signals)))
    assert replayed == plans
    assert [msgspec.json.decode(msgspec.json.encode(plan), type=Plan) for plan in plans] == plans


def test_trees_reuse_a_shape_for_some_rounds_and_recompute_it_for_other_sizes() -> None:
    trees = Trees()

    def best(most: int) -> ShapedTree:
        return trees.best("tree", price=lambda nodes, levels: 1 + FLAT * nodes, most=most)

    trees.learn([("tree", UNSURE)])
    first = best(8)
    assert len(first.shape) == 8
    assert best(8) is first
    assert len(best(3).shape) == 3
    assert len(best(8).shape) == 8
    trees.learn([("tree", SURE)])
    answers = [best(8) for _ in range(REFIT + 1)]
    assert answers[0].shape.branches
    assert not answers[-1].shape.branches


def test_fixed_tree_follows_the_rates() -> None:
    policy = FixedTree(4)
    assert policy.plan(signals()) == Plan(0, reason="fixed", shape=policy.plan(signals()).shape)
    wide = policy.plan(signals(rates=(("tree", UNSURE),)))
    assert wide.draft_max == 4
    assert wide.shape is not None
    assert wide.shape.branches
    assert policy.plan(signals()) == wide
    chain = policy.plan(signals(rates=(("tree", SURE),)))
    assert chain.shape is not None
    assert not chain.shape.branches
    assert policy.plan(Signals(context_tokens=64, remaining_tokens=3)).draft_max == 2
