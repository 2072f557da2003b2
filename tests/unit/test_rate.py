"""Rate: confidence bounds of a proportion, against published tables and by coverage."""

import numpy as np
import pytest

from edgedecode.pack.engine_equality import Rate


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 10, 0.0, 0.30850), (1, 10, 0.00253, 0.44502), (5, 10, 0.18709, 0.81291), (10, 10, 0.69150, 1.0)],
)
def test_rate_bounds_are_clopper_pearson(count: int, total: int, low: float, high: float) -> None:
    """Figures of published tables."""
    rate = Rate(count, total)
    assert (rate.low, rate.high) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))


def test_rate_of_zero_has_the_bound_of_the_rule_of_three() -> None:
    assert Rate(0, 3000).low == 0
    assert Rate(0, 3000).high == pytest.approx(1 - 0.025 ** (1 / 3000))
    assert Rate(100_000, 100_000).low == pytest.approx(0.025 ** (1 / 100_000))


def test_rate_bounds_cover_as_often_as_stated() -> None:
    rng = np.random.default_rng(0)
    for share in (0.001, 0.1):
        held = [(rate := Rate(int(count), 400)).low <= share <= rate.high for count in rng.binomial(400, share, 300)]
        assert np.mean(held) >= 0.93


def test_rate_as_text() -> None:
    assert str(Rate(12, 120)) == "12 of 120, 10% (5.3 to 17% at 95% confidence)"
    assert str(Rate(199, 200)) == "199 of 200, 99.5% (97.2 to 99.987% at 95% confidence)"
    assert str(Rate(60, 60)) == "60 of 60, 100% (94 to 100% at 95% confidence)"
    assert str(Rate(0, 60)) == "0 of 60, 0% (0 to 6% at 95% confidence)"
