"""The scheduler with a draft model on a device of its own: it overlaps where that pays, and nowhere else."""

from __future__ import annotations

import random
from functools import cache
from statistics import mean

import pytest

from edgedecode.decoding.policy import Plan
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.scheduler import Scheduler, SchedulerOptions
from tests.virtual import Accepts, Machine, Simulation, simulate

SEEDS = range(100, 106)
TOKENS = 768
STEPS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
ACCEPTED = (0.5, 0.7, 0.8, 0.9, 0.95)


@cache
def some(share: float, seed: int) -> Accepts:
    rng = random.Random(seed)
    right = [rng.random() < share for _ in range(10_000)]
    return right.__getitem__


def simulated(accepted: float, machine: Machine, seed: int, *, separate: bool) -> Simulation:
    scheduler = Scheduler(models=["model"], options=SchedulerOptions(separate=separate))
    return simulate(scheduler, tokens=TOKENS, machine=machine, model=some(accepted, seed), seed=seed)


def overlapped(found: Simulation) -> list[Plan]:
    return [plan for plan in found.plans if plan.ahead]


def gain(accepted: float, machine: Machine) -> tuple[float, float]:
    """Return the speed-up over the scheduler without overlap, and the share of rounds with overlap."""
    alone = [simulated(accepted, machine, seed, separate=False) for seed in SEEDS]
    beside = [simulated(accepted, machine, seed, separate=True) for seed in SEEDS]
    assert not any(overlapped(found) for found in alone)
    share = mean(len(overlapped(found)) / len(found.rounds) for found in beside)
    return sum(found.cost for found in alone) / sum(found.cost for found in beside), share


def machine(step: float, **changes: float) -> Machine:
    return Machine(row=0.1, draft=step, read=step / 8, **{"jitter": 0.1, "spikes": 0.02, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("step", STEPS)
def test_scheduler_with_overlap_never_loses_to_itself_without(step: float) -> None:
    for accepted in ACCEPTED:
        speed_up, share = gain(accepted, machine(step))
        assert speed_up > (1.0 if share > 0.2 else 0.975), (
            accepted,
            share,
        )  # rounds diverge, and their noise with them


@pytest.mark.parametrize(("step", "accepted"), [(0.2, 0.95), (0.3, 0.9), (0.3, 0.95)])
def test_scheduler_gains_a_fifth_where_the_drafts_fit_into_the_pass(step: float, accepted: float) -> None:
    speed_up, share = gain(accepted, machine(step))
    assert speed_up >= 1.2
    assert share > 0.5


def test_scheduler_gives_overlap_up_where_it_slows_the_target() -> None:
    """As on cores that two "devices" share, unknown to the placement."""
    speed_up, share = gain(0.9, machine(0.2, contention=0.6))
    assert share < 0.1
    assert speed_up > 0.97


def test_answers_under_a_grammar_are_not_planned_to_overlap() -> None:
    """A grammar may cut a draft, so the loop never overlaps it: its gain must not be expected."""
    known = Experience()
    options = SchedulerOptions(separate=True)
    texts = [(some(0.9, seed), seed) for seed in SEEDS]
    for kind, overlaps in (("", True), ("{}", False)):
        found = [
            simulate(
                Scheduler(models=["model"], experience=known, options=options),
                tokens=TOKENS,
                machine=machine(0.2),
                model=text,
                seed=seed,
                kind=kind,
            )
            for text, seed in texts
        ]
        assert any(overlapped(each) for each in found) is overlaps
        assert all(each.used("model") for each in found)
