"""Entropy in nats, and its window."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgedecode.entropy import EntropyWindow, entropy_nats


def test_uniform_and_certain_rows() -> None:
    assert entropy_nats(np.zeros(64, dtype=np.float32)) == pytest.approx(math.log(64))
    assert entropy_nats(np.array([0, 200, 0], dtype=np.float32)) == pytest.approx(0, abs=1e-9)


def test_it_is_the_definition_on_random_rows() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        row = (3 * rng.standard_normal(50)).astype(np.float32)
        p = np.exp(row.astype(np.float64))
        p /= p.sum()
        assert entropy_nats(row) == pytest.approx(-(p * np.log(p)).sum())
        assert entropy_nats(row + np.float32(40)) == pytest.approx(entropy_nats(row), abs=1e-4)


def test_masked_ids_add_nothing() -> None:
    row = np.array([1.0, -np.inf, 1.0], dtype=np.float32)
    assert entropy_nats(row) == pytest.approx(math.log(2))


def test_the_window_is_a_moving_mean() -> None:
    window = EntropyWindow(3)
    assert [window.push(value) for value in (3.0, 1.0, 2.0, 6.0)] == pytest.approx([3, 2, 2, 3])
    assert window.full
    window.clear()
    assert not window.full
    assert window.push(5.0) == 5.0


def test_a_window_holds_something() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        EntropyWindow(0)
