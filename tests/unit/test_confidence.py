"""Confidence in a draft model's tokens: cheap features and a logistic regression on accepted and rejected tokens."""

import math

import numpy as np
import pytest

from edgedecode.drafters.confidence import Confidence, Features, features
from edgedecode.sampling.row_draw import NumpyRowDraw


@pytest.mark.parametrize("width", [2, 50, 40_000])
def test_features_are_those_of_the_softmax(width: int) -> None:
    row = (2 * np.random.default_rng(width).standard_normal(width)).astype(np.float32)
    p = np.exp(row.astype(np.float64) - row.max())
    p /= p.sum()
    seen = features(NumpyRowDraw().leading(row), 3)
    top, second = np.sort(row)[[-1, -2]]
    assert seen.logit == pytest.approx(math.log(p.max() / (1 - p.max())), abs=1e-3)
    assert seen.margin == pytest.approx(float(top - second), abs=1e-5)
    assert seen.position == 3
    assert Confidence().chance(seen) == pytest.approx(p.max(), abs=1e-4)


@pytest.mark.parametrize(
    "row", [[5.0], [1000.0, -1000.0], [0.0, -math.inf, -math.inf], [2.0, 2.0], [-math.inf, 3.0]], ids=str
)
def test_extreme_rows_give_finite_features(row: list[float]) -> None:
    seen = features(NumpyRowDraw().leading(np.array(row, dtype=np.float32)), 40)
    assert all(math.isfinite(value) and abs(value) <= 6 for value in seen)


def test_confidence_learns_how_often_a_drafter_is_right() -> None:
    """The simulated drafter is less reliable than its probabilities, the more so at a small margin."""
    rng = np.random.default_rng(0)
    confidence = Confidence()
    truth = lambda seen: 1 / (1 + math.exp(-(0.5 * seen.logit + 0.3 * seen.margin - 0.4 * seen.position)))  # noqa: E731
    draws = [Features(*rng.uniform((-3, 0, 0), (4, 5, 5)).tolist()) for _ in range(6000)]

    def error() -> float:
        return float(np.mean([abs(confidence.chance(seen) - truth(seen)) for seen in draws[:500]]))

    before = error()
    for seen in draws:
        confidence.learn([seen], int(rng.random() < truth(seen)))
    assert error() < 0.06 < 0.5 * before


def test_learn_ignores_tokens_after_the_first_rejected_one() -> None:
    tokens = [Features(1.0, 1.0, float(place)) for place in range(4)]
    whole, cut = Confidence(), Confidence()
    whole.learn(tokens, 1)
    cut.learn(tokens[:2], 1)
    assert whole.weights == cut.weights != [1.0, 0.0, 0.0]
