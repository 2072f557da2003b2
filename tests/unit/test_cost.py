"""The cost model learns from timed passes: a few suffice for nearby widths; outliers and noise have little effect."""

import random
from dataclasses import replace

import pytest

from edgedecode.decoding.policy import NO_DRAFTER, RoundCost
from edgedecode.schedule.cost_model import CostModel, context_bucket
from edgedecode.schedule.cost_table import ENOUGH, MOST_BETA, OUTLIER, CostTable
from edgedecode.schedule.draft_cost import GUESS
from edgedecode.schedule.medians import STEADY
from edgedecode.schedule.prices import Prices

STEP = 0.01


def measured_table(curve: dict[int, float], *, passes: int = 10, noise: float = 0.0) -> CostTable:
    rng = random.Random(0)
    table = CostTable()
    for _ in range(passes):
        for width, cost in curve.items():
            table.observe(width, STEP * cost * (1 + noise * rng.gauss(0, 1)))
    table._curve = []
    return table


def test_cost_table_keeps_measured_widths_and_interpolates_others() -> None:
    table = measured_table({1: 1.0, 2: 1.2, 3: 1.4, 5: 1.8, 9: 2.6})
    for width, cost in ((1, 1.0), (2, 1.2), (3, 1.4), (5, 1.8), (9, 2.6)):
        assert table.c(width) == pytest.approx(cost, rel=0.02)
    assert table.c(4) == pytest.approx(1.6, rel=0.03)
    assert table.c(17) == pytest.approx(4.2, rel=0.1)


def test_cost_table_extrapolates_from_one_width() -> None:
    cheap, costly = measured_table({1: 1.0, 2: 1.1}), measured_table({1: 1.0, 2: 1.6})
    assert cheap.c(8) < CostTable().c(8) < costly.c(8)


def test_cost_table_curve_never_falls() -> None:
    table = measured_table({1: 1.0, 2: 1.5, 3: 1.45, 4: 1.2, 5: 2.0, 8: 1.9}, noise=0.2)
    curve = [table.c(width) for width in range(1, 80)]
    assert curve == sorted(curve)


def test_cost_table_is_robust_to_a_few_outliers() -> None:
    table = measured_table({1: 1.0, 2: 1.2}, passes=50)
    table.observe(1, 100 * STEP)
    table.observe(2, 100 * STEP)
    assert table.step < 1.5 * STEP
    for _ in range(20):
        table.observe(1, STEP)
        table.observe(2, 1.2 * STEP)
    assert table.c(2) == pytest.approx(1.2, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_cost_table_ignores_impossible_times(seconds: float) -> None:
    table = measured_table({1: 1.0, 2: 1.2})
    before = (table.step, table.c(2))
    table.observe(2, seconds)
    assert (table.step, table.c(2)) == before


def test_cost_table_has_no_step_before_three_plain_passes() -> None:
    table = CostTable()
    for width in (2, 2, 2, 1, 1):
        table.observe(width, STEP)
    assert table.step is None
    table.observe(1, STEP)
    assert table.step == STEP


def test_cost_table_recovers_from_first_plain_passes_under_load() -> None:
    """Slow first plain passes make wide ones look cheap until the next plain passes, which are due soon."""
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


def test_cost_table_least_curve_is_lower_with_fewer_measurements() -> None:
    few, many = measured_table({1: 1.0, 4: 2.0}, passes=4), measured_table({1: 1.0, 4: 2.0}, passes=40)
    assert 1.0 < few.curve(least=True)[4] < many.curve(least=True)[4] < many.c(4)
    assert CostTable().curve(least=True)[4] < CostTable().c(4)
    before = many.curve(least=True)[4]
    for _ in range(2048):
        many.observe(1, STEP)
    assert many.curve(least=True)[4] < before, "an old measurement counts less"


def test_plain_pass_is_due_at_growing_intervals() -> None:
    table, waits = CostTable(), []
    for _ in range(8):
        waits.append(next(rounds for rounds in range(100) if table.is_due(rounds)))
        table.observe(1, STEP)
    assert waits == [0, 0, 0, 8, 16, 32, 64, 64]


def test_cost_model_keeps_a_table_per_context_bucket_that_starts_from_the_nearest() -> None:
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


@pytest.mark.parametrize(("seconds", "step", "host"), [(0.0002, 0.45, 1.5), (0.02, 0.153, 0.015)])
def test_guesses_hold_for_small_targets_too(seconds: float, step: float, host: float) -> None:
    costs = CostModel()
    costs.observe(RoundCost(width=1, pass_seconds=seconds), context_tokens=1)
    prices = Prices(costs, costs.table(1), seconds)
    assert prices.step("model") == pytest.approx(step)
    assert prices.host("suffix") == pytest.approx(prices.host(NO_DRAFTER) + host)


def test_cost_model_limits_a_draft_models_first_slow_passes() -> None:
    """Otherwise the draft model would not be used again, and so never be timed again."""
    costs = CostModel()
    for _ in range(3):
        costs.observe(RoundCost(width=1, pass_seconds=STEP), context_tokens=1)
    prices = Prices(costs, costs.table(1), STEP)
    one = RoundCost(width=2, pass_seconds=STEP, drafter="model", drafted=1, read=1, draft_seconds=2 * STEP)
    found = []
    for _ in range(STEADY // 2 + 1):
        costs.observe(one, context_tokens=1)
        found.append(prices.step("model", least=True))
    assert found == pytest.approx([2 * GUESS.step + GUESS.step_seconds / STEP] * (STEADY // 2) + [2.0])
    assert prices.step("model") == pytest.approx(2.0)


def test_cost_model_estimates_step_and_reading_from_one_round() -> None:
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


def time_often(costs: CostModel, drafter: str) -> None:
    """Time enough rounds of the drafter that its costs are trusted."""
    for _ in range(3 + STEADY):
        costs.observe(plain(STEP), context_tokens=1)
        costs.observe(replace(drafting(STEP), drafter=drafter), context_tokens=1)


def drafting(steps: float) -> RoundCost:
    return RoundCost(width=2, pass_seconds=1.3 * steps, drafter="model", drafted=1, read=1, draft_seconds=0.2 * steps)


def test_cost_model_keeps_costs_relative_to_the_plain_step() -> None:
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
def test_cost_model_takes_a_plain_pass_that_confirms_the_drift_as_the_new_step(factor: float) -> None:
    costs = CostModel()
    time_often(costs, "model")
    assert not costs.is_due(ENOUGH, context_tokens=1)
    for _ in range(3):
        costs.drifted(factor, "model")
    assert costs.is_due(ENOUGH, context_tokens=1)
    costs.observe(plain(STEP * factor), context_tokens=1)
    assert costs.table(1).step == pytest.approx(STEP * factor)
    assert not costs.is_due(ENOUGH, context_tokens=1)


def test_cost_model_averages_a_plain_pass_that_contradicts_the_drift() -> None:
    costs = CostModel()
    time_often(costs, "model")
    costs.observe(plain(3 * STEP), context_tokens=1)
    for _ in range(3):
        costs.drifted(2.5, "model")
    costs.observe(plain(STEP), context_tokens=1)
    assert costs.table(1).step == pytest.approx(STEP)


def test_cost_model_limits_the_drift_of_one_round() -> None:
    """One interrupted round would use up the exploration budget, and the drafter would not be tried again."""
    costs = CostModel()
    assert [costs.drifted(ratio, "model") for ratio in (100.0, 1.0, 1.2)] == [OUTLIER, 1.0, 1.2]
    assert costs.drift.value is None, "the prediction was only a guess"
    time_often(costs, "model")
    assert costs.drifted(100.0, "model") == OUTLIER
    assert [costs.drifted(1.0, "model") for _ in range(3)] == [1.0] * 3


def test_best_length_values_drafts_that_their_model_ends_early() -> None:
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


def test_costs_that_are_doubted_again_and_again_stay_costs() -> None:
    """A noisy machine: what is kept of one measurement is not multiplied by the next."""
    table = CostTable()
    for _ in range(8):
        table.observe(1, 0.005)
    for _ in range(40):
        for steps in (1.0, 2.0):
            table.observe(3, 0.005 * steps)
            table.doubt()
    assert max(table.known_beta.values()) <= MOST_BETA


@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_rows_of_a_draft_made_at_once_cost_as_much_as_the_targets(slope: float) -> None:
    costs = CostModel()
    for _ in range(20):
        costs.observe(RoundCost(1, STEP, host_seconds=0.01 * STEP), context_tokens=100)
    for length in (2, 8, 5, 8, 2) * 8:
        spent, drafted = (STEP * (1 + slope * rows) for rows in (length, length - 1))
        cost = RoundCost(1 + length, spent, host_seconds=0.02 * STEP, drafter="head", drafted=length, read=length + 9)
        costs.observe(replace(cost, draft_seconds=0.3 * drafted, at_once=length), context_tokens=100)
    long = RoundCost(3, STEP, drafter="head", drafted=2, read=500, draft_seconds=90 * STEP, at_once=2)
    costs.observe(long, context_tokens=100)
    prices = Prices(costs, costs.table(100), STEP)
    assert prices.read("head") == pytest.approx(90 / 500, rel=0.02)
    for length in (2, 8):
        expected = 0.02 + 0.3 * (1 + slope * (length - 1))
        assert prices.host("head") + length * prices.step("head") == pytest.approx(expected, rel=0.05)
