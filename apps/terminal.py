"""What verbs show beside their results: tables' width, notices, and how far long work is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgedecode.user_notices import NOTICES, NoticeLines, ProgressLines, show_work

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["progress", "show_notices", "table_console"]

_PASTED_WIDTH = 150
"""Columns where the output is not a terminal: a pasted table must not be folded."""


def table_console() -> Console:
    """Return what writes tables to standard output."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PASTED_WIDTH)


def show_notices() -> None:
    """Show notices, warnings and the progress of long work from now on. Idempotent."""
    show_work(progress)
    logger = logging.getLogger(NOTICES)
    for each in (logger, logging.getLogger("edgedecode")):
        if not any(isinstance(handler, NoticeLines) for handler in each.handlers):
            each.addHandler(NoticeLines())
    logger.setLevel(logging.INFO)
    logger.propagate = False  # who shows the other logs would show these twice


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show on standard error what is done while the block runs; its value is called with each amount, 1 by itself.

    A bar on a terminal, elsewhere a line every few seconds. It moves only when it is told to, so never during a
    measured run.
    """
    if not sys.stderr.isatty():
        yield ProgressLines(what, total).advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=total)

        def advance(steps: float = 1) -> None:
            bar.advance(task, steps)
            bar.refresh()

        yield advance
