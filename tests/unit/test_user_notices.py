"""Notices that many sessions repeat."""

import logging

import pytest

from edgedecode import user_notices
from edgedecode.user_notices import notice, rarely_repeated


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
