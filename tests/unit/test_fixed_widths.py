"""The scheduler on an engine whose passes have fixed widths: it pays for the width, not for the rows."""

from collections import Counter
from statistics import fmean

import numpy as np
import pytest

from edgedecode.schedule.cost_model import CostModel
from edgedecode.schedule.cost_table import CostTable
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.fixed_widths import fixed_curve, fixed_width
from edgedecode.schedule.scheduler import Scheduler
from tests.unit.test_scheduler import some
from tests.virtual import Machine, simulate

WIDTHS = (1, 4, 8)
FIXED = Machine(widths=((1, 1.0), (4, 1.1), (8, 1.5)), draft=0.12)
MACHINES = [
    FIXED,
    Machine(widths=((1, 1.0), (4, 1.05), (8, 1.1), (16, 1.3)), draft=0.1),
    Machine(widths=((1, 1.0), (4, 1.6), (8, 2.4)), draft=0.1),
]
SHARES = (0.5, 0.7, 0.9)
"""Acceptance rates of a draft."""
SEEDS = range(6)
TOKENS = 768


def test_fixed_width_is_the_next_one() -> None:
    assert [fixed_width(rows, WIDTHS) for rows in range(1, 9)] == [1, 4, 4, 4, 8, 8, 8, 8]
    assert fixed_width(9, WIDTHS) == 9, "several passes"
    assert [fixed_width(rows, (4, 8)) for rows in (1, 4, 5)] == [1, 1, 8], "one row takes the narrowest width too"
    assert fixed_width(5, ()) == 5


def test_fixed_curve_adds_up_passes_beyond_the_widest() -> None:
    curve = [0.0, 1.0, 1.2, 1.3, 1.4, 1.6, 1.7, 1.8, 1.9, *([9.0] * 10)]
    assert fixed_curve(curve, WIDTHS)[1:14] == [1.0, 1.4, 1.4, 1.4, 1.9, 1.9, 1.9, 1.9, 2.9, *[1.9 + 1.4] * 3, 3.8]
    assert fixed_curve(curve, ()) == curve


def test_cost_table_of_fixed_widths_learns_only_those() -> None:
    table = CostTable(widths=WIDTHS)
    for rows in [1, 1, 1, 1, *range(2, 9)] * 4:
        table.observe(rows, 0.01 * FIXED.c(rows))
    table.observe(12, 1.0)  # two passes
    assert np.flatnonzero(table.seen).tolist() == [4, 8]
    table._curve = []  # fits again
    assert table.c(2) == table.c(4) == pytest.approx(1.1, rel=0.02)
    assert table.c(5) == table.c(8) == pytest.approx(1.5, rel=0.02)


def test_experience_keeps_the_widths() -> None:
    costs = CostModel()
    costs.pad_to(WIDTHS)
    costs.table(0).observe(1, 0.01)
    again = Experience.from_dict(Experience(costs).as_dict())
    assert again.costs.widths == again.costs.table(0).widths == WIDTHS


def scheduled(machine: Machine, share: float, seed: int, *, widths: tuple[int, ...]) -> tuple[float, Counter[int]]:
    """Return the cost of a text, and how many rounds had each number of rows."""
    experience = Experience()
    experience.costs.pad_to(widths)
    found = simulate(
        Scheduler(models=("model",), experience=experience),
        tokens=TOKENS,
        machine=machine,
        model=some(share, seed),  # type: ignore[arg-type]
        seed=seed,
    )
    return found.cost, Counter(1 + drafted for _, _, drafted, _ in found.rounds)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_scheduler_that_knows_the_widths_is_not_slower(machine: Machine) -> None:
    """In the mean over easy and hard texts; on one text it may explore later than a scheduler that interpolates."""
    widths = tuple(width for width, _ in machine.widths)
    gains, rows = [], Counter[int]()
    for share in SHARES:
        aware = [scheduled(machine, share, seed, widths=widths) for seed in SEEDS]
        blind = [scheduled(machine, share, seed, widths=()) for seed in SEEDS]
        gains.append(sum(cost for cost, _ in blind) / sum(cost for cost, _ in aware))
        rows += sum((counts for _, counts in aware), Counter[int]())
    print(machine.widths, [round(gain, 3) for gain in gains])
    assert fmean(gains) > 0.98
    assert min(gains) >= 0.9
    assert max(rows) <= widths[-1], "a second pass for few rows never pays here"
