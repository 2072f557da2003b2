"""Terminal output of the verbs besides their results: the console for tables, notices, progress."""

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
"""Columns where the output is not a terminal, so that a redirected table is not wrapped."""


def table_console() -> Console:
    """Return the rich console for tables on standard output."""
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
    logger.propagate = False  # a handler on the root logger would show these a second time


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show progress on standard error while the block runs; call the yielded function with each step done, default 1.

    Show a bar on a terminal, elsewhere a line every few seconds. There is no automatic refresh, which would disturb
    measured runs.
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
