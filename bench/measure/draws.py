"""Measures sampling a token from a row of a large vocabulary: all combinations of options on many shapes of rows.

The rows are generated here and stay in the processor's cache as far as they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from time import perf_counter

import numpy as np

from edgedecode import SamplingOptions
from edgedecode.arrays import FloatArray
from edgedecode.sampling.penalties import Marked
from edgedecode.sampling.row_draw import RowDraw

__all__ = ["DrawCost", "draw_shapes", "measure_draws"]

VOCABULARY = 151_936
SEEN = 500
"""Distinct ids that the repeat penalty applies to."""
LOOKS = 3
"""Trial draws per combination, to find the slowest one of a shape."""


@dataclass(frozen=True, slots=True)
class DrawCost:
    """Median seconds of a draw from one shape of row, greedy and with the slowest combination of options."""

    shape: str
    greedy_seconds: float
    worst_seconds: float
    worst: dict[str, float]
    combinations: int


def draw_shapes(size: int = VOCABULARY) -> Iterator[tuple[str, FloatArray]]:
    """Yield rows with their names: typical ones, and ones that are hard to truncate or to bin."""
    generator = np.random.default_rng(0)
    normal = generator.standard_normal(size)
    places = np.arange(size)
    peaked = normal.copy()
    peaked[generator.integers(0, size, 3)] += 20
    masked = np.where(generator.random(size) < 0.7, -np.inf, 2.5 * normal)
    masked[0] = 0
    for name, row in (
        ("peaked", peaked),
        ("as a model's", 2.5 * normal + np.where(generator.random(size) < 1e-4, 8, 0)),
        ("flat", 0.01 * normal),
        ("all equal", np.full(size, 0.37)),
        ("two values", np.where(normal > 0, 1, 0)),
        ("three adjacent floats", 1 - generator.integers(0, 3, size) * 2.0**-24),
        ("ties at thresholds", np.where(places % 1001 == 1, 3, np.where(places % 3 == 0, 0, -2))),
        ("rounded", np.round(16 * normal) / 16),
        ("one above equals", np.where(places == 5, 10, 0)),
        ("masked", masked),
        ("descending", np.sort(2.5 * normal)[::-1]),
    ):
        yield name, np.ascontiguousarray(row, np.float32)


def measure_draws(
    helper: RowDraw, *, repetitions: int, advance: Callable[[], None], size: int = VOCABULARY, quick: bool = False
) -> list[DrawCost]:
    """Time every combination LOOKS times on each shape, and the slowest one `repetitions` times."""
    return [
        _cost(helper, name, row, repetitions=repetitions, advance=advance, quick=quick)
        for name, row in draw_shapes(size)
    ]


def _cost(
    helper: RowDraw, shape: str, row: FloatArray, *, repetitions: int, advance: Callable[[], None], quick: bool
) -> DrawCost:
    combinations = _combinations(len(row), quick=quick)
    slowest = max(combinations, key=lambda options: _seconds(helper, row, options, LOOKS))
    greedy = _seconds(helper, row, SamplingOptions(), repetitions)
    worst = _seconds(helper, row, slowest, repetitions)
    advance()
    return DrawCost(shape, greedy, worst, slowest.as_dict(), len(combinations))


def _combinations(size: int, *, quick: bool) -> list[SamplingOptions]:
    temperatures = (0.7,) if quick else (0.3, 0.7, 1.0, 100.0)
    top_ks = (0, 40, size // 2) if quick else (0, 1, 40, 1000, size // 16, size // 2, size - 1)
    top_ps = (1.0, 0.95) if quick else (1.0, 1 - 1e-9, 0.999, 0.95, 0.5, 1e-9)
    return [SamplingOptions(*each) for each in product(temperatures, top_ks, top_ps, (0.0, 0.05), (1.0, 1.1))]


def _seconds(helper: RowDraw, row: FloatArray, options: SamplingOptions, times: int) -> float:
    seen = Marked.of(dict.fromkeys(range(min(SEEN, len(row))), 1))
    found = []
    for key in range(times):
        began = perf_counter()
        helper.draw(row, options, key=key, seen=seen)
        found.append(perf_counter() - began)
    return median(found)
