"""Terminal output of the verbs besides their results: the console for tables, notices, progress."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from edgedecode.user_notices import NOTICES, NoticeLines, ProgressLines, ask_before_downloads, show_work

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_Item = TypeVar("_Item")
_PASTED_WIDTH = 150
"""Columns where the output is not a terminal, so that a redirected table is not wrapped."""


def table_console() -> "Console":
    """Return the rich console for tables on standard output."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PASTED_WIDTH)


def plain_table(*titles: str, left: int = 0) -> "Table":
    """Return a table without lines, whose columns after the first `left` are aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < left else "right")
    return table


def show_notices() -> None:
    """Show notices, warnings and the progress of long work from now on. Idempotent."""
    show_work(progress)
    ask_before_downloads(_agreed)
    logger = logging.getLogger(NOTICES)
    for each in (logger, logging.getLogger("edgedecode")):
        if not any(isinstance(handler, NoticeLines) for handler in each.handlers):
            each.addHandler(NoticeLines())
    logger.setLevel(logging.INFO)
    logger.propagate = False  # a handler on the root logger would show these a second time


def _agreed(offer: str) -> bool:
    """Ask whether to download a model, on a terminal; elsewhere its name is the request, and a notice tells."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"{offer} is not here. Download it? [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in ("", "y", "yes")


def tracked(items: Iterable[_Item], what: str) -> Iterator[_Item]:
    """Yield items while `progress` shows how many are done."""
    every = [*items]
    with progress(what, len(every)) as advance:
        for item in every:
            yield item
            advance()


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
