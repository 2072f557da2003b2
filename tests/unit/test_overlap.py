"""Drafting on a second device: the plan's prediction, and a simulation in which it never loses where it is chosen."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, repeat
from operator import mul

import pytest

from edgedecode.bench.overlap.simulation import Text, simulated_seconds
from edgedecode.bench.overlap.two_devices import ACCEPTED, STEPS, recorded_passes
from edgedecode.errors import CapabilityError
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.overlap import OverlapPlan, TwoDevices, best_overlap, outcome_chances

SEEDS = range(3)
TOKENS = 1500


def passes(rows: int) -> float:
    return 1 + 0.02 * (rows - 1)


def alive(accepted: float, longest: int = 12) -> list[float]:
    return list(accumulate(repeat(accepted, longest + 1), mul))


def seconds(devices: TwoDevices, plan: OverlapPlan, text: Text, **noise: float) -> float:
    return sum(simulated_seconds(devices, plan, text, tokens=TOKENS, seed=seed, **noise) for seed in SEEDS)  # type: ignore[arg-type]


def test_outcome_chances_are_those_of_the_accepted_run_and_the_second_choices() -> None:
    chances = outcome_chances([0.8, 0.64, 0.512], 2, 0.5)
    assert chances == pytest.approx(sorted([0.512, 0.1, 0.08, 0.064], reverse=True))
    assert sum(outcome_chances(alive(0.7), 4, 1.0)) == pytest.approx(1)


def test_best_overlap_without_separate_devices_never_overlaps() -> None:
    for step in STEPS:
        for accepted in ACCEPTED:
            assert best_overlap(TwoDevices(passes, step, separate=False), alive(accepted), second=0.5).guesses == 0


@pytest.mark.parametrize("second", [0.0, 0.18, 0.5])
@pytest.mark.parametrize("step", STEPS)
def test_overlap_is_never_chosen_where_it_loses(step: float, second: float) -> None:
    """Against the best draft length in hindsight, with noise that the plan does not know."""
    devices = TwoDevices(passes, step)
    for accepted in ACCEPTED:
        plan, text = best_overlap(devices, alive(accepted), second=second), Text(accepted, second)
        if plan.guesses:
            plain = [seconds(devices, replace(plan, length=length, guesses=0), text) for length in range(1, 13)]
            assert seconds(devices, plan, text) < min(plain), (step, accepted, plan)


@pytest.mark.parametrize(("step", "accepted"), [(0.2, 0.9), (0.3, 0.9)])
def test_overlap_gains_a_fifth_where_the_drafts_fit_into_the_pass(step: float, accepted: float) -> None:
    devices, text = TwoDevices(passes, step), Text(accepted, 0.5)
    plan = best_overlap(devices, alive(accepted), second=0.5)
    plain = min(seconds(devices, replace(plan, length=length, guesses=0), text) for length in range(1, 13))
    assert plain / seconds(devices, plan, text) >= 1.2


@pytest.mark.parametrize("guesses", [0, 1, 4])
def test_overlap_plan_predicts_the_time_of_a_machine_without_noise(guesses: int) -> None:
    devices, text = TwoDevices(passes, 0.25), Text(0.8, 0.5)
    plan = OverlapPlan(3, guesses, 0.0)
    spent = seconds(devices, plan, text, jitter=0.0, spikes=0.0)
    hit = sum(outcome_chances(alive(0.8), 3, 0.5)[:guesses])
    prepared, verifying, drafting = devices.prepared(3, guesses), passes(4), 3 * devices.step
    late = devices.step / 2 if prepared > verifying else 0.0
    cost = verifying + drafting
    if guesses:
        cost = hit * max(verifying, prepared) + (1 - hit) * (verifying + late + drafting)
    tokens = 1 + sum(alive(0.8)[:3])
    assert spent == pytest.approx(len(SEEDS) * TOKENS * cost / tokens, rel=0.05)


def test_recorded_passes_need_a_session_on_this_device() -> None:
    with pytest.raises(CapabilityError, match="run `edgedecode bench --calibrate` first"):
        recorded_passes(Experience(), context_tokens=100)
    known = Experience()
    for rows in [1, 1, 1, 1, 5, 5, 5, 5] * 4:
        known.costs.table(100).observe(rows, 0.01 * passes(rows))
    found = recorded_passes(known, context_tokens=100)
    assert found(1) == 1.0
    assert found(5) == pytest.approx(passes(5), rel=0.05)
