"""Trees as arms of the scheduler: chosen where they promise 3% more than the best chain, never elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from edgedecode.decoding.policy import FixedTree, Offer, Plan, RoundCost, Score, Signals
from edgedecode.decoding.tree import RankRates, depths
from edgedecode.schedule.scheduler import Scheduler
from edgedecode.schedule.tree_arms import MARGIN, TreeArms, TreeChoice

STEP = 0.01
FLAT, STEEP = 0.02, 0.5
"""What a row more costs, in plain passes."""
UNSURE: RankRates = ((0.45, 0.3, 0.15),) * 4
"""A second guess is worth much."""
SURE: RankRates = ((0.9, 0.02, 0.0),) * 4
"""Only the first guess is worth anything."""


def cost(width: int, *, row: float, **others: object) -> RoundCost:
    return RoundCost(width=width, pass_seconds=STEP * (1 + row * (width - 1)), host_seconds=STEP / 100, **others)  # type: ignore[arg-type]


def signals(number: int, **others: object) -> Signals:
    return Signals(round=number, context_tokens=64, remaining_tokens=64, **others)  # type: ignore[arg-type]


def taught(scheduler: Scheduler, *, row: float) -> None:
    """Let it see what passes of every width cost here, and plain ones last."""
    costs = [cost(1, row=row)] * 4
    for width in (2, 3, 5, 9, 17):
        costs += [cost(width, row=row)] * 8
    scheduler.plan(signals(1, costs=tuple(costs)))


def chains(share: float, drafter: str) -> tuple[Score, ...]:
    """Scores of an offered chain of which each token is right with this chance."""
    scores = []
    credit = 0.0
    for _ in range(40):
        accepted = 0
        while accepted < 4:
            credit += share
            if credit < 1:
                break
            credit -= 1
            accepted += 1
        scores.append(Score(drafter, 4, accepted))
    return tuple(scores)


@pytest.mark.parametrize(("rates", "row", "tree"), [(UNSURE, FLAT, True), (UNSURE, STEEP, False), (SURE, FLAT, False)])
def test_a_free_drafter_gets_a_tree_only_where_it_promises_more(rates: RankRates, row: float, tree: bool) -> None:
    scheduler = Scheduler(free=["recycle"])
    taught(scheduler, row=row)
    plan = Plan(0)
    for number in range(2, 6):
        scores = chains(rates[0][0], "recycle") if number == 2 else ()
        told = (("recycle", rates),) if number == 2 else ()
        plan = scheduler.plan(signals(number, offers=(Offer("recycle", 8),), scores=scores, rates=told))
    assert (plan.shape is not None) is tree
    if tree:
        assert plan.shape is not None
        assert plan.drafter == "recycle"
        assert plan.shape.branches
        assert len(plan.shape) == plan.draft_max


def drive(scheduler: Scheduler, *, row: float, rates: RankRates, rounds: int) -> list[Plan]:
    """Rounds of a chain arm and a tree arm over one draft model; what is accepted follows the rates exactly."""
    taught(scheduler, row=row)
    plans, costs, credit = list[Plan](), tuple[RoundCost, ...](), 0.0
    for number in range(2, rounds + 2):
        told = (("tree", rates),) if number == 2 else ()
        plan = scheduler.plan(signals(number, unread=(("model", 1), ("tree", 1)), costs=costs, rates=told))
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
        costs = (
            cost(
                plan.draft_max + 1,
                row=row,
                drafter=plan.drafter or "none",
                drafted=plan.draft_max,
                accepted=accepted,
                read=1 if plan.draft_max else 0,
                draft_seconds=drafting,
                levels=levels if plan.shape is not None and plan.shape.branches else 0,
            ),
        )
    return plans


def test_a_tree_of_the_draft_model_is_taken_where_second_guesses_pay() -> None:
    plans = drive(Scheduler(models=["model", "tree"]), row=FLAT, rates=UNSURE, rounds=120)
    late = [plan for plan in plans[60:] if plan.drafter == "tree"]
    assert len(late) > 40
    assert all(plan.shape is not None and plan.shape.branches for plan in late)


@pytest.mark.parametrize(("rates", "row"), [(SURE, FLAT), (SURE, STEEP / 2)])
def test_where_the_first_guess_is_all_the_chain_stays(rates: RankRates, row: float) -> None:
    plans = drive(Scheduler(models=["model", "tree"]), row=row, rates=rates, rounds=120)
    assert sum(plan.drafter == "model" for plan in plans[20:]) > 90
    assert not any(plan.drafter == "tree" for plan in plans[20:])


def test_a_tree_at_which_nothing_pays_is_off() -> None:
    plans = drive(Scheduler(models=["tree"]), row=0.9, rates=((0.1, 0.05, 0.0),) * 4, rounds=120)
    assert sum(plan.draft_max > 0 for plan in plans) < 12


def test_its_rounds_replay_from_json() -> None:
    plans, seen = list[Plan](), list[str]()
    recorded = Scheduler(models=["model", "tree"])
    ask = recorded.plan

    def plan(given: Signals) -> Plan:
        seen.append(json.dumps(asdict(given)))
        plans.append(ask(given))
        return plans[-1]

    recorded.plan = plan  # type: ignore[method-assign]
    drive(recorded, row=FLAT, rates=UNSURE, rounds=60)
    assert any(plan.shape is not None for plan in plans)
    again = Scheduler(models=["model", "tree"])
    assert [again.plan(Signals.from_dict(json.loads(line))) for line in seen] == plans
    assert [Plan.from_dict(json.loads(json.dumps(asdict(plan)))) for plan in plans] == plans


def chosen(rates: RankRates, *, most: int = 8) -> TreeChoice:
    scheduler, arms = Scheduler(), TreeArms()
    taught(scheduler, row=FLAT)
    arms.learn([("tree", rates)])
    return arms.best("tree", costs=scheduler.costs, context_tokens=64, most=most, model=False)


@pytest.mark.parametrize(("second", "proven"), [(0.0, False), (0.02, False), (0.2, True)])
def test_a_tree_little_better_than_the_chain_of_its_guesses_is_not_proven(second: float, proven: bool) -> None:
    choice = chosen(((0.6, second),) * 3)
    assert choice.proven is proven is (choice.gain > MARGIN)


def test_a_chain_of_second_guesses_is_no_gain() -> None:
    assert chosen(((0.1, 0.6),), most=1).gain == 1.0


def test_a_shape_is_thought_over_when_it_must_be() -> None:
    scheduler, arms = Scheduler(), TreeArms()
    taught(scheduler, row=FLAT)

    def best(most: int) -> TreeChoice:
        return arms.best("tree", costs=scheduler.costs, context_tokens=64, most=most, model=False)

    arms.learn([("tree", UNSURE)])
    first = best(8)
    assert len(first.shape) == 8
    assert best(8) is first
    assert len(best(3).shape) == 3
    assert len(best(8).shape) == 8
    arms.learn([("tree", SURE)])
    answers = [best(8) for _ in range(8)]
    assert answers[0].shape.branches
    assert not answers[-1].shape.branches


def test_fixed_trees_follow_the_rates() -> None:
    policy = FixedTree(4)
    assert policy.plan(signals(1)) == Plan(0, reason="fixed", shape=policy.plan(signals(1)).shape)
    wide = policy.plan(signals(2, rates=(("tree", UNSURE),)))
    assert wide.draft_max == 4
    assert wide.shape is not None
    assert wide.shape.branches
    assert policy.plan(signals(3)) == wide
    chain = policy.plan(signals(4, rates=(("tree", SURE),)))
    assert chain.shape is not None
    assert not chain.shape.branches
    assert policy.plan(Signals(round=5, context_tokens=64, remaining_tokens=3)).draft_max == 2
