"""Notices that many sessions repeat, and progress that is shown in two places."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context

import pytest

from edgedecode import user_notices
from edgedecode.user_notices import Bar, notice, rarely_repeated, show_work, show_work_too, work


def test_a_repeated_notice_is_shown_once_a_period(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 5.0, 9.0, 11.0, 12.0, *[13.0] * 300])
    monkeypatch.setattr(user_notices.time, "monotonic", lambda: next(clock))
    caplog.set_level(logging.INFO, logger=user_notices.NOTICES)
    with rarely_repeated(10):
        for _ in range(5):
            notice("the context is short")
        for number in range(200):
            notice(f"another {number}")
        notice("another 199")
    notice("another 199")
    texts = [record.getMessage() for record in caplog.records if record.name == user_notices.NOTICES]
    assert texts.count("the context is short") == 2
    assert texts.count("another 199") == 2  # outside of it every notice is shown
    assert len(texts) == 2 + 200 + 1


@pytest.mark.parametrize("places", [1, 2])
def test_progress_is_shown_in_a_second_place_too(places: int) -> None:
    told: list[tuple[str, str, float]] = []

    def bar_of(place: str) -> Bar:
        @contextmanager
        def bar(what: str, total: int) -> Iterator[Callable[[float], None]]:
            yield lambda amount: told.append((place, what, amount / total))

        return bar

    def work_in_places() -> None:
        if places == 2:
            show_work(bar_of("terminal"))
        show_work_too(bar_of("page"))
        with work("weights", 8) as advance:
            advance(2)

    copy_context().run(work_in_places)
    assert sorted(told) == [("page", "weights", 0.25), ("terminal", "weights", 0.25)][:places]
