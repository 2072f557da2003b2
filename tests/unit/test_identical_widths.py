"""Which widths are found to round alike, on toys whose kernels round by the number of rows."""

from __future__ import annotations

from itertools import count

import pytest

from edgedecode.engines.identical_widths import NARROW, TOKENS, WIDE, IdenticalWidths, best_class, measure_widths
from edgedecode.testing import TableModel, TableState, toy_tables
from tests.toys import RoundingModel, each_its_own, even_pairs

TABLES = toy_tables(40, seed=1)
EVEN = tuple(width for width in NARROW if width % 2 == 0)


def test_every_width_of_a_row_invariant_model() -> None:
    assert measure_widths(TableModel(TABLES)) == IdenticalWidths(NARROW, WIDE)


def test_even_widths_where_an_odd_row_is_computed_alone() -> None:
    assert measure_widths(RoundingModel(TABLES, kernels=even_pairs)) == IdenticalWidths(EVEN, WIDE)


def test_none_where_every_width_has_a_kernel_of_its_own() -> None:
    assert measure_widths(RoundingModel(TABLES, kernels=each_its_own)) == IdenticalWidths(())


def test_kernels_that_do_not_repeat_themselves_give_none() -> None:
    calls = count(1)
    assert measure_widths(RoundingModel(TABLES, kernels=lambda place, rows: next(calls))) == IdenticalWidths(())


@pytest.mark.parametrize("place", [0, 17, 31])
def test_a_wide_pass_may_differ_in_any_row(place: int) -> None:
    model = RoundingModel(TABLES, kernels=lambda row, rows: int(rows == 64 and row == place))
    assert measure_widths(model) == IdenticalWidths(NARROW, (32,))


def test_one_row_kernels_leave_the_widths_from_two_on() -> None:
    found = measure_widths(RoundingModel(TABLES, kernels=lambda row, rows: int(rows == 1)))
    assert found.all == (*NARROW[1:], *WIDE)


@pytest.mark.parametrize("context", [8, 40, 72, 96, 150])
def test_short_contexts_have_fewer_widths(context: int) -> None:
    found = measure_widths(RoundingModel(TABLES, kernels=even_pairs, context=context))
    assert found.drafts == tuple(width for width in EVEN if width <= context - min(TOKENS, context // 2))


def test_an_engine_that_splits_passes_has_fewer_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableState, "width", 9, raising=False)
    assert measure_widths(RoundingModel(TABLES, kernels=even_pairs)) == IdenticalWidths((2, 4, 6, 8))


def test_a_memory_that_cannot_be_cut_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableState, "oldest_crop", 1000)
    assert measure_widths(RoundingModel(TABLES, kernels=even_pairs)) == IdenticalWidths(EVEN, WIDE)


def test_slow_measuring_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[None] = []
    measure_widths(TableModel(TABLES), slow=lambda: told.append(None))
    assert told == []
    monkeypatch.setattr("edgedecode.engines.identical_widths.SLOW_SECONDS", 0.0)
    measure_widths(TableModel(TABLES), slow=lambda: told.append(None))
    assert told == [None]


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
def test_the_class_holds_long_drafts_first_and_pads_little_then(
    classes: list[list[int]], best: tuple[int, ...]
) -> None:
    assert best_class(classes) == best


def test_states_are_closed() -> None:
    model = RoundingModel(TABLES, kernels=even_pairs)
    measure_widths(model)
    assert model._budget.used_nbytes == 0
