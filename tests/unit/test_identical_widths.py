"""Which widths give identical bits, on toy models whose kernels round by the number of rows."""

from __future__ import annotations

from itertools import count

import pytest

from edgedecode.engines.identical_widths import NARROW, TOKENS, WIDE, IdenticalWidths, best_class, measure_widths
from edgedecode.testing import TableModel, TableState, toy_tables
from tests.toys import RoundingModel, kernel_per_count, kernel_per_pair

TABLES = toy_tables(40, seed=1)
EVEN = tuple(width for width in NARROW if width % 2 == 0)


def test_measure_widths_finds_every_width_of_a_row_invariant_model() -> None:
    assert measure_widths(TableModel(TABLES)) == IdenticalWidths(NARROW, WIDE)


def test_measure_widths_finds_even_widths_if_an_odd_row_is_computed_alone() -> None:
    assert measure_widths(RoundingModel(TABLES, kernels=kernel_per_pair)) == IdenticalWidths(EVEN, WIDE)


def test_measure_widths_finds_none_if_every_width_has_its_own_kernel() -> None:
    assert measure_widths(RoundingModel(TABLES, kernels=kernel_per_count)) == IdenticalWidths(())


def test_measure_widths_finds_none_if_kernels_are_not_deterministic() -> None:
    calls = count(1)
    assert measure_widths(RoundingModel(TABLES, kernels=lambda place, rows: next(calls))) == IdenticalWidths(())


@pytest.mark.parametrize("place", [0, 17, 31])
def test_measure_widths_compares_every_row_of_a_wide_pass(place: int) -> None:
    model = RoundingModel(TABLES, kernels=lambda row, rows: int(rows == 64 and row == place))
    assert measure_widths(model) == IdenticalWidths(NARROW, (32,))


def test_measure_widths_leaves_out_one_row_if_only_it_differs() -> None:
    found = measure_widths(RoundingModel(TABLES, kernels=lambda row, rows: int(rows == 1)))
    assert found.all == (*NARROW[1:], *WIDE)


@pytest.mark.parametrize("context", [8, 40, 72, 96, 150])
def test_measure_widths_finds_fewer_widths_in_a_short_context(context: int) -> None:
    found = measure_widths(RoundingModel(TABLES, kernels=kernel_per_pair, context=context))
    assert found.drafts == tuple(width for width in EVEN if width <= context - min(TOKENS, context // 2))


def test_measure_widths_finds_fewer_widths_if_the_engine_splits_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableState, "width", 9, raising=False)
    assert measure_widths(RoundingModel(TABLES, kernels=kernel_per_pair)) == IdenticalWidths((2, 4, 6, 8))


def test_measure_widths_reads_again_if_the_state_cannot_be_cropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableState, "oldest_crop", 1000)
    assert measure_widths(RoundingModel(TABLES, kernels=kernel_per_pair)) == IdenticalWidths(EVEN, WIDE)


def test_measure_widths_reports_slowness_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    measure_widths(TableModel(TABLES), slow=lambda: calls.append(None))
    assert calls == []
    monkeypatch.setattr("edgedecode.engines.identical_widths.SLOW_SECONDS", 0.0)
    measure_widths(TableModel(TABLES), slow=lambda: calls.append(None))
    assert calls == [None]


@pytest.mark.parametrize(
    ("classes", "best"),
    [
        ([], ()),
        ([[1], [2], [17]], ()),
        ([[1], [2, 3, 4]], (2, 3, 4)),
        ([[1, 2, 3], [4, 8, 17]], (4, 8, 17)),
        ([[2, 4, 16, 18], [3, 5, 17]], (2, 4, 16, 18)),
        ([[1, 20], [2, 8, 17]], (2, 8, 17)),
    ],
)
def test_best_class_prefers_long_drafts_then_little_padding(classes: list[list[int]], best: tuple[int, ...]) -> None:
    assert best_class(classes) == best


def test_measure_widths_closes_its_states() -> None:
    model = RoundingModel(TABLES, kernels=kernel_per_pair)
    measure_widths(model)
    assert model._budget.used_nbytes == 0
