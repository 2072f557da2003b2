"""What a user should hear although nothing failed: a choice that was made, a file that was made. Silent by default.

A program that wants them listens to the logger `edgedecode.user_notices`, and gives `show_work` what draws its bars.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TypeAlias

from edgedecode.text.printable import shown

__all__ = ["NOTICES", "Bar", "NoticeLines", "ProgressLines", "notice", "show_work", "work"]

NOTICES = "edgedecode.user_notices"
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


class ProgressLines:
    """Prints on standard error how far long work is, a line every few seconds: what a bar shows where there is no
    terminal. It prints only when it is told of progress, and so never during a measured run."""

    SECONDS = 5.0

    def __init__(self, what: str, total: float) -> None:
        self._what, self._total, self._done = what, total, 0.0
        self._started = self._said = time.monotonic()

    def advance(self, amount: float = 1) -> None:
        """So much more is done."""
        self._done += amount
        self.print_if_due()

    def print_if_due(self) -> None:
        """Print a line if the last one is some seconds old."""
        now = time.monotonic()
        if now - self._said < self.SECONDS:
            return
        self._said = now
        share = f" {min(1.0, self._done / self._total):.0%}" if self._total else ""
        sys.stderr.write(f"edgedecode: {self._what}{share}, {now - self._started:.0f} s\n")
        sys.stderr.flush()


class NoticeLines(logging.Handler):
    """Writes them to whatever standard error is at that moment, a line each, as errors are shown."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"edgedecode: {record.getMessage()}\n")
        sys.stderr.flush()
