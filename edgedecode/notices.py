"""What a user should hear although nothing failed: a choice that was made, a file that was made. Silent by default.

A program that wants them listens to the logger `edgedecode.notices`, and gives `show_work` what draws its bars.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TypeAlias

from edgedecode.text import shown

__all__ = ["NOTICES", "Bar", "NoticeLines", "notice", "show_work", "work"]

NOTICES = "edgedecode.notices"
"""The logger's name."""

Bar: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[float], None]]]
"""Draws a bar while its block runs: called with what is done and the amount of it, gives what moves it by an amount."""
_BAR: ContextVar[Bar | None] = ContextVar("bar of long work", default=None)


def notice(text: str) -> None:
    """Tell whoever listens, one line."""
    logging.getLogger(NOTICES).info("%s", shown(" ".join(text.split())))


def work(what: str, total: int) -> AbstractContextManager[Callable[[float], None]]:
    """Announce work that takes seconds; the block's value is called with each amount done, out of `total`."""
    bar = _BAR.get()
    return nullcontext(_unseen) if bar is None else bar(what, total)


def show_work(bar: Bar | None) -> None:
    """Draw long work with `bar` from now on, in this context; None: not at all."""
    _BAR.set(bar)


def _unseen(amount: float) -> None:
    pass


class NoticeLines(logging.Handler):
    """Writes them to whatever standard error is at that moment, a line each, as errors are shown."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"edgedecode: {record.getMessage()}\n")
        sys.stderr.flush()
