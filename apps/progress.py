"""How far long work is: a bar on a terminal, elsewhere a line every few seconds. It moves only when it is told to, so
never during a measured run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgedecode.user_notices import ProgressLines

__all__ = ["progress"]


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show on standard error what is done while the block runs; its value is called with each amount, 1 by itself."""
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
