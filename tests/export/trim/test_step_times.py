"""The order of timed passes, with the full and the trimmed draft interleaved."""

import pytest

from edgedecode.export.trim import timing as step_times
from edgedecode.export.trim.timing import REPETITIONS, time_drafts, time_target
from edgedecode.testing import TableModel, toy_tables
from tests.toys import TrimmedTable

TEXT = list(range(30)) * 20


def test_time_target_times_each_width_after_a_pass_of_that_width() -> None:
    target = TableModel(toy_tables(40, seed=0))
    times = time_target(target, TEXT, repetitions=2)
    assert [*times] == [*range(1, 10)]
    assert all(seconds > 0 for seconds in times.values())
    assert target.passes[0] == 256
    assert target.passes[1:] == [width for _ in range(2 + 3) for width in range(1, 10) for _ in range(2)]


def test_time_drafts_interleaves_the_drafts_after_target_passes() -> None:
    order: list[str] = []

    class RecordingModel(TableModel):
        def forward(self, tokens, state, **options):  # type: ignore[no-untyped-def]
            order.append(self.label)
            return super().forward(tokens, state, **options)

    models = []
    for name in ("target", "full", "trimmed"):
        model = RecordingModel(toy_tables(40, seed=0))
        model.label = name  # type: ignore[attr-defined]
        models.append(model)
    target, full, part = models
    trimmed = TrimmedTable(part, range(5))
    seconds, ratio = time_drafts(target, full, trimmed, tokens=TEXT, repetitions=1)
    assert order[:3] == ["target", "full", "trimmed"], "prefill of the context"
    turn = ["target", "full", "full", "target", "trimmed", "trimmed"]
    assert order[3:] == turn * (1 + 3)
    assert seconds > 0
    assert ratio > 0


def test_time_target_repeats_short_passes_more_often(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    clock = [0.0]

    def tick() -> float:
        clock[0] += 0.001
        return clock[0]

    monkeypatch.setattr(step_times, "perf_counter", tick)
    target = TableModel(toy_tables(40, seed=0))
    time_target(target, TEXT)
    samples = (len(target.passes) - 1) / 18 - 3
    assert samples > REPETITIONS


def test_time_target_repeats_a_text_shorter_than_the_context() -> None:
    target = TableModel(toy_tables(40, seed=0), context=64)
    assert time_target(target, [1, 2, 3], repetitions=1)
    assert target.passes[0] == 64 - 9


def test_time_drafts_ratio_compares_consecutive_steps(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A machine that slows down steadily does not change the ratio."""
    pace = [1.0]

    def passing(model, state, tokens, *, rows="all"):  # type: ignore[no-untyped-def]
        pace[0] *= 1.01
        return pace[0] * (0.5 if isinstance(model, TrimmedTable) else 1.0)

    monkeypatch.setattr(step_times, "timed_pass", passing)
    model = TableModel(toy_tables(40, seed=0))
    trimmed = TrimmedTable(model, range(5))
    _, ratio = time_drafts(model, model, trimmed, tokens=TEXT, repetitions=15)
    assert ratio == pytest.approx(0.5 * 1.01**3)
