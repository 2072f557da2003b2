"""Costs are learnt from passes: a few are enough for the widths around them, outliers and noise do little."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgedecode.decoding.policy import RoundCost
from edgedecode.schedule.cost import ENOUGH, GUESS, OUTLIER, STEADY, CostModel, CostTable, Prices, context_bucket

STEP = 0.01


def taught(curve: dict[int, float], *, passes: int = 10, noise: float = 0.0) -> CostTable:
    rng = random.Random(0)
    table = CostTable()
    for _ in range(passes):
        for width, cost in curve.items():
            table.observe(width, STEP * cost * (1 + noise * rng.gauss(0, 1)))
    table._curve = []
    return table


def test_measured_widths_are_known_and_others_lie_between() -> None:
    table = taught({1: 1.0, 2: 1.2, 3: 1.4, 5: 1.8, 9: 2.6})
    for width, cost in ((1, 1.0), (2, 1.2), (3, 1.4), (5, 1.8), (9, 2.6)):
        assert table.c(width) == pytest.approx(cost, rel=0.02)
    assert table.c(4) == pytest.approx(1.6, rel=0.03)
    assert table.c(17) == pytest.approx(4.2, rel=0.1)


def test_one_width_tells_about_all() -> None:
    cheap, dear = taught({1: 1.0, 2: 1.1}), taught({1: 1.0, 2: 1.6})
    assert cheap.c(8) < CostTable().c(8) < dear.c(8)


def test_the_curve_never_falls() -> None:
    table = taught({1: 1.0, 2: 1.5, 3: 1.45, 4: 1.2, 5: 2.0, 8: 1.9}, noise=0.2)
    curve = [table.c(width) for width in range(1, 80)]
    assert curve == sorted(curve)


def test_a_few_wild_passes_move_it_little() -> None:
    table = taught({1: 1.0, 2: 1.2}, passes=50)
    table.observe(1, 100 * STEP)
    table.observe(2, 100 * STEP)
    assert table.step is not None
    assert table.step < 1.5 * STEP
    for _ in range(20):
        table.observe(1, STEP)
        table.observe(2, 1.2 * STEP)
    assert table.c(2) == pytest.approx(1.2, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_no_clock_says_is_passed_over(seconds: float) -> None:
    table = taught({1: 1.0, 2: 1.2})
    before = (table.step, table.c(2))
    table.observe(2, seconds)
    assert (table.step, table.c(2)) == before


def test_nothing_is_known_before_three_plain_passes() -> None:
    table = CostTable()
    for width in (2, 2, 2, 1, 1):
        table.observe(width, STEP)
    assert table.step is None
    table.observe(1, STEP)
    assert table.step == STEP


def test_first_plain_passes_beside_other_work_are_got_over() -> None:
    """They make wide passes look cheap until the next plain ones, which are asked for soon."""
    table = CostTable()
    for _ in range(3):
        table.observe(1, 3 * STEP)
    for _ in range(20):
        table.observe(4, 1.5 * STEP)
    assert table.c(4) == 1.0
    for _ in range(3):
        table.observe(1, STEP)
    assert table.step == STEP
    for _ in range(40):
        table.observe(4, 1.5 * STEP)
    assert table.c(4) == pytest.approx(1.5, rel=0.05)


def test_what_passes_may_turn_out_to_cost_is_the_less_the_less_was_measured() -> None:
    few, many = taught({1: 1.0, 4: 2.0}, passes=4), taught({1: 1.0, 4: 2.0}, passes=40)
    assert 1.0 < few.curve(least=True)[4] < many.curve(least=True)[4] < many.c(4)
    assert CostTable().curve(least=True)[4] < CostTable().c(4)
    before = many.curve(least=True)[4]
    for _ in range(2048):
        many.observe(1, STEP)
    assert many.curve(least=True)[4] < before, "a measurement grows old"


def test_a_plain_pass_is_due_soon_at_first_and_then_seldom() -> None:
    table, waits = CostTable(), []
    for _ in range(8):
        waits.append(next(rounds for rounds in range(100) if table.is_due(rounds)))
        table.observe(1, STEP)
    assert waits == [0, 0, 0, 8, 16, 32, 64, 64]


def test_contexts_have_tables_of_their_own_that_start_from_a_neighbour() -> None:
    assert [context_bucket(length) for length in (1, 512, 513, 2048, 8192, 9000)] == [0, 0, 1, 1, 2, 3]
    costs = CostModel()
    for _ in range(9):
        costs.observe(RoundCost(width=1, pass_seconds=STEP), context_tokens=100)
        costs.observe(RoundCost(width=3, pass_seconds=1.2 * STEP), context_tokens=100)
    assert costs.table(3000).c(3) == pytest.approx(costs.table(100).c(3), rel=0.05)
    for _ in range(60):
        costs.observe(RoundCost(width=3, pass_seconds=2.0 * STEP), context_tokens=3000)
    assert costs.table(3000).c(3) > 1.8
    assert costs.table(100).c(3) == pytest.approx(1.2, rel=0.05)


def test_steps_and_reading_of_a_draft_model_are_told_apart() -> None:
    costs = CostModel()
    for _ in range(5):
        costs.observe(RoundCost(width=1, pass_seconds=STEP), context_tokens=1)
        costs.observe(
            RoundCost(width=3, pass_seconds=STEP, drafter="model", drafted=2, read=1, draft_seconds=0.004),
            context_tokens=1,
        )
    costs.observe(
        RoundCost(width=3, pass_seconds=STEP, drafter="model", drafted=2, read=100, draft_seconds=0.102),
        context_tokens=1,
    )
    prices = Prices(costs, costs.table(1), STEP)
    assert prices.step("model") == pytest.approx(0.2)
    assert prices.read("model") == pytest.approx((0.102 - 2 * 0.002) / 99 / STEP)
    assert prices.step("suffix") != 0.2


def test_a_draft_models_first_slow_passes_are_not_believed_alone() -> None:
    """Else it would not be used again, and never be timed again."""
    costs = CostModel()
    for _ in range(3):
        costs.observe(RoundCost(width=1, pass_seconds=STEP), context_tokens=1)
    prices = Prices(costs, costs.table(1), STEP)
    one = RoundCost(width=2, pass_seconds=STEP, drafter="model", drafted=1, read=1, draft_seconds=2 * STEP)
    found = []
    for _ in range(STEADY // 2 + 1):
        costs.observe(one, context_tokens=1)
        found.append(prices.step("model", least=True))
    assert found == pytest.approx([2 * GUESS.step] * (STEADY // 2) + [2.0])
    assert prices.step("model") == pytest.approx(2.0)


def test_a_first_look_that_had_to_read_tells_step_and_reading_roughly() -> None:
    costs = CostModel()
    for _ in range(3):
        costs.observe(RoundCost(width=1, pass_seconds=STEP), context_tokens=1)
    cost = RoundCost(width=3, pass_seconds=STEP, drafter="model", drafted=2, read=50, draft_seconds=0.003)
    costs.observe(cost, context_tokens=1)
    prices = Prices(costs, costs.table(1), STEP)
    assert 2 * prices.step("model") + 49 * prices.read("model") == pytest.approx(0.003 / STEP)
    assert prices.read("model") < prices.step("model")


def plain(seconds: float) -> RoundCost:
    return RoundCost(width=1, pass_seconds=seconds, host_seconds=seconds / 10)


def known(costs: CostModel, drafter: str) -> None:
    """Let a drafter's rounds have been timed often."""
    for _ in range(3 + STEADY):
        costs.observe(plain(STEP), context_tokens=1)
        costs.observe(replace(drafting(STEP), drafter=drafter), context_tokens=1)


def drafting(steps: float) -> RoundCost:
    return RoundCost(width=2, pass_seconds=1.3 * steps, drafter="model", drafted=1, read=1, draft_seconds=0.2 * steps)


def test_costs_are_kept_in_plain_steps_so_that_a_slower_machine_changes_none() -> None:
    costs = CostModel()
    for step in (STEP, 3 * STEP):
        for _ in range(6):
            costs.observe(plain(step), context_tokens=1)
        for _ in range(6):
            costs.observe(drafting(step), context_tokens=1)
        prices = Prices(costs, costs.table(1), costs.table(1).step or 0.0)
        assert prices.seconds == pytest.approx(step)
        assert (prices.step("model"), prices.host("none")) == pytest.approx((0.2, 0.1))
        assert costs.table(1).c(2) == pytest.approx(1.3, rel=0.01)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_plain_pass_that_agrees_with_drafting_rounds_is_the_new_step_at_once(factor: float) -> None:
    costs = CostModel()
    known(costs, "model")
    assert not costs.is_due(ENOUGH, context_tokens=1)
    for _ in range(3):
        costs.drifted(factor, "model")
    assert costs.is_due(ENOUGH, context_tokens=1)
    costs.observe(plain(STEP * factor), context_tokens=1)
    assert costs.table(1).step == pytest.approx(STEP * factor)
    assert not costs.is_due(ENOUGH, context_tokens=1)


def test_a_plain_pass_that_does_not_agree_is_one_of_several() -> None:
    costs = CostModel()
    known(costs, "model")
    costs.observe(plain(3 * STEP), context_tokens=1)
    for _ in range(3):
        costs.drifted(2.5, "model")
    costs.observe(plain(STEP), context_tokens=1)
    assert costs.table(1).step == pytest.approx(STEP)


def test_the_first_drafting_rounds_cannot_drift_far() -> None:
    """One that was interrupted would use up an account, and the drafter would not be tried again."""
    costs = CostModel()
    assert [costs.drifted(ratio, "model") for ratio in (100.0, 1.0, 1.2)] == [OUTLIER, 1.0, 1.2]
    assert costs.drift.value is None, "what was predicted was a guess"
    known(costs, "model")
    assert costs.drifted(100.0, "model") == OUTLIER
    assert [costs.drifted(1.0, "model") for _ in range(3)] == [1.0] * 3


def test_a_draft_that_its_model_ends_costs_less_than_one_that_is_rejected() -> None:
    costs = CostModel()
    costs.observe(plain(STEP), context_tokens=1)
    prices = Prices(costs, CostTable(STEP, {2: 0.3, 4: 0.3, 8: 0.3, 16: 0.3}), STEP)
    alive = [0.6**depth for depth in range(1, 9)]
    sure = [prices.best_length(alive, len(alive), step=0.2, stops=share) for share in (0.0, 0.5, 1.0)]
    assert [speed for _, speed in sure] == sorted(speed for _, speed in sure)
    assert sure[0][1] < sure[2][1]
    assert sure[0][0] <= sure[2][0]
    certain = [1.0] * 8
    assert prices.best_length(certain, 8, step=0.2) == prices.best_length(certain, len(certain), step=0.2, stops=1.0)
