"""Confidence intervals against published values, exact enumeration, and their coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgedecode.apps.tasks.intervals import paired_difference, paired_ratio, share_interval, share_lower_bound


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [  # Newcombe (1998), Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_interval(count: int, total: int, low: float, high: float) -> None:
    found = share_interval(count, total)
    assert (found.value, found.low, found.high) == (
        pytest.approx(count / total),
        pytest.approx(low, abs=6e-5),
        pytest.approx(high, abs=6e-5),
    )


def test_one_sided_bound_is_that_of_a_wider_interval() -> None:
    assert share_lower_bound(81, 263) == pytest.approx(share_interval(81, 263, confidence=0.90).low)
    assert share_lower_bound(0, 5) == 0.0


def test_paired_difference_agrees_with_the_normal_approximation() -> None:
    random = np.random.default_rng(1)
    second = random.random(1000) < 0.8
    first = np.where(random.random(1000) < 0.1, ~second, second)
    found = paired_difference(first.tolist(), second.tolist())
    each = first.astype(float) - second
    half = 1.96 * each.std() / math.sqrt(1000)
    assert found.value == pytest.approx(each.mean())
    assert found.low == pytest.approx(each.mean() - half, abs=0.003)
    assert found.high == pytest.approx(each.mean() + half, abs=0.003)
    assert found == paired_difference(first.tolist(), second.tolist())
    assert found != paired_difference(first.tolist(), second.tolist(), seed=1)


def test_paired_ratio() -> None:
    second = [True] * 80 + [False] * 20
    first = [True] * 76 + [False] * 24
    found = paired_ratio(first, second)
    assert found is not None
    assert found.value == pytest.approx(0.95)
    assert 0.88 < found.low < 0.95 < found.high <= 1.0
    lower = paired_ratio(first, second, one_sided=True)
    assert lower is not None
    assert found.low < lower.low < 0.95
    assert lower.high == math.inf


def test_paired_ratio_of_equal_arms_is_exact() -> None:
    same = [True, False, True]
    found = paired_ratio(same, same)
    assert found is not None
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    assert paired_ratio(same, [False] * 3) is None


def test_paired_ratio_with_rare_answers_stays_a_number() -> None:
    found = paired_ratio([True, False, True, False], [True, False, False, False])
    assert found is not None
    assert found.value == 2
    assert not math.isnan(found.low)
    assert not math.isnan(found.high)


def test_bounds_cover_the_true_difference_about_as_often_as_stated() -> None:
    random = np.random.default_rng(3)
    inside = 0
    for _ in range(100):
        second = random.random(150) < 0.7
        first = np.where(random.random(150) < 0.2, random.random(150) < 0.5, second)
        truth = 0.8 * 0.7 + 0.2 * 0.5 - 0.7
        found = paired_difference(first.tolist(), second.tolist())
        inside += found.low <= truth <= found.high
    assert inside >= 89


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        paired_difference([True], [True, False])
    with pytest.raises(ValueError, match="not pairs"):
        paired_difference([], [])
