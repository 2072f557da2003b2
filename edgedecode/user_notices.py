"""Notices for the user that are not errors, such as an automatic choice or a new file. Silent by default.

A program that shows them handles the logger `edgedecode.user_notices`, passes its progress bar to `show_work`, and its
question to `ask_before_downloads`.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeAlias

from edgedecode.text.printable import shown

NOTICES = "edgedecode.user_notices"
"""The logger's name."""

Bar: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[float], None]]]
"""Shows progress while its block runs: called with the name and amount of the work; yields a function that advances it
by an amount."""
_BAR: ContextVar[Bar | None] = ContextVar("bar of long work", default=None)


_CONSENT: ContextVar[Callable[[str], bool] | None] = ContextVar("question before a download", default=None)


def notice(text: str) -> None:
    """Log a one-line notice."""
    logging.getLogger(NOTICES).info("%s", shown(" ".join(text.split())))


def work(what: str, total: int) -> AbstractContextManager[Callable[[float], None]]:
    """Announce work that takes seconds; the block calls the yielded function with each amount done, out of `total`."""
    bar = _BAR.get()
    return nullcontext(_unseen) if bar is None else bar(what, total)


def show_work(bar: Bar | None) -> None:
    """Show the progress of long work with `bar` from now on, in this context; None: do not show it."""
    _BAR.set(bar)


def show_work_too(bar: Bar) -> None:
    """Show the progress of long work with `bar` as well from now on, in this context."""
    other = _BAR.get()

    @contextmanager
    def both(what: str, total: int) -> Iterator[Callable[[float], None]]:
        assert other is not None
        with bar(what, total) as first, other(what, total) as second:

            def advance(amount: float) -> None:
                first(amount)
                second(amount)

            yield advance

    show_work(bar if other is None else both)


def ask_before_downloads(consent: Callable[[str], bool] | None) -> None:
    """Ask from now on, in this context, before a model is downloaded because it was named; None: do not ask.

    consent: is given the model's name and size, and returns whether to download it.
    """
    _CONSENT.set(consent)


def may_download(what: str) -> bool:
    """Return whether the user agrees to a download, if they are to be asked."""
    consent = _CONSENT.get()
    return consent is None or consent(what)


def _unseen(amount: float) -> None:
    pass


class ProgressLines:
    """Prints progress on standard error, a line every few seconds, where there is no terminal for a bar. It prints
    only when progress is reported, so never during a measured run."""

    SECONDS = 5.0

    def __init__(self, what: str, total: float) -> None:
        self._what, self._total, self._done = what, total, 0.0
        self._started = self._printed = time.monotonic()

    def advance(self, amount: float = 1) -> None:
        """Add an amount of finished work."""
        self._done += amount
        self.print_if_due()

    def print_if_due(self) -> None:
        """Print a line if the last one is some seconds old."""
        now = time.monotonic()
        if now - self._printed < self.SECONDS:
            return
        self._printed = now
        share = f" {min(1.0, self._done / self._total):.0%}" if self._total else ""
        sys.stderr.write(f"edgedecode: {self._what}{share}, {now - self._started:.0f} s\n")
        sys.stderr.flush()


@contextmanager
def rarely_repeated(seconds: float) -> Iterator[None]:
    """While entered, drop a notice that was logged less than `seconds` ago: a server's sessions all report the same."""
    logger, rare = logging.getLogger(NOTICES), _Rare(seconds)
    logger.addFilter(rare)
    try:
        yield
    finally:
        logger.removeFilter(rare)


class _Rare(logging.Filter):
    MOST = 64
    """Texts that are remembered."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), time.monotonic()
        if now < self._logged.get(text, -self._seconds) + self._seconds:
            return False
        self._logged.pop(text, None)  # the dictionary is in the order of the last notice
        self._logged[text] = now
        for oldest in list(self._logged)[: -self.MOST]:
            self._logged.pop(oldest, None)
        return True


class NoticeLines(logging.Handler):
    """Writes notices to the current `sys.stderr`, a line each, in the format of error messages."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"edgedecode: {record.getMessage()}\n")
        sys.stderr.flush()
