"""Sparse distributions: sampling, residuals, and tokens outside the support."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.sampling.probs import Probs

masses = st.lists(st.floats(0, 1), min_size=2, max_size=8).filter(lambda values: sum(values) > 1e-3)
uniforms = st.floats(0, 1, exclude_max=True)


def dense(values: list[float]) -> Probs:
    return Probs.dense(np.array(values))


@given(masses, uniforms)
def test_draw_inverts_the_cumulative_sum(values: list[float], uniform: float) -> None:
    probs = dense(values)
    token = probs.draw(uniform)
    assert values[token] > 0
    below = sum(values[:token]) / sum(values)
    assert below - 1e-9 <= uniform < below + values[token] / sum(values) + 1e-9


@given(masses)
def test_dense_support_is_sorted_and_positive_and_sums_to_one(values: list[float]) -> None:
    probs = dense(values)
    assert (np.diff(probs.ids) > 0).all()
    assert (probs.p > 0).all()
    assert probs.p.sum() == pytest.approx(1)
    for token, value in enumerate(values):
        assert probs.of(token) == pytest.approx(value / sum(values))
    assert probs.of(len(values)) == 0
    assert values[probs.argmax()] == max(values)


def test_draw_of_the_largest_uniform_stays_in_the_support() -> None:
    probs = Probs(np.array([3, 9]), np.array([0.5, 0.5 - 1e-12]))  # rounding may leave the sum below 1
    assert probs.draw(np.nextafter(1.0, 0.0)) == 9
    assert probs.draw(0.0) == 3


@given(masses, masses)
def test_minus_is_the_normalized_positive_part(left: list[float], right: list[float]) -> None:
    size = max(len(left), len(right))
    p = np.pad(left, (0, size - len(left))) / sum(left)
    q = np.pad(right, (0, size - len(right))) / sum(right)
    difference = np.maximum(p - q, 0)
    residual = dense(left).minus(dense(right))
    if residual is None:
        assert difference.sum() < 1e-9
    elif difference.sum() > 1e-6:
        found = np.array([residual.of(token) for token in range(size)])
        np.testing.assert_allclose(found, difference / difference.sum(), atol=1e-6)


def test_minus_of_equal_distributions_is_none() -> None:
    assert dense([0.25, 0.75]).minus(dense([0.25, 0.75])) is None


def test_minus_ignores_tokens_outside_the_support() -> None:
    residual = Probs.point(4).minus(Probs.point(9))
    assert residual.ids.tolist() == [4]
