"""A bar on standard error that moves only when it is told to, so never during a measured run. Knows rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar while the block runs; it redraws only when it is advanced, never during a run."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task(what, total=total)

        def advance(steps: float = 1) -> None:
            bar.advance(task, steps)
            bar.refresh()

        yield advance
