"""Progress display of a long job on standard error, and its stages as a table and as JSON values."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from threading import Event, Thread
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from edgedecode.memory.sizes import format_nbytes
from edgedecode.user_notices import ProgressLines

from ..stages import StageRecord, Stages
from .signals import end_if_asked

Report: TypeAlias = "dict[str, str | int | float | Report | list[Report] | list[str] | list[int] | None]"


@contextmanager
def live_stages() -> Iterator[Stages]:
    """Yield stages that show their progress on standard error: bars on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Stages(_lines)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        yield Stages(partial(_bar, bars))


@contextmanager
def _bar(bars: Progress, title: str, total: int) -> Iterator[Callable[[int], None]]:
    end_if_asked()
    task = bars.add_task(title, total=total or None)

    def advance(amount: int) -> None:
        end_if_asked()
        bars.advance(task, amount)

    yield advance
    bars.update(task, total=total or 1, completed=total or 1)


@contextmanager
def _lines(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Print a line every few seconds, also while there is no progress, and one when the stage ends."""
    end_if_asked()
    lines, over = ProgressLines(title, total), Event()

    def beat() -> None:
        while not over.wait(1.0):
            lines.print_if_due()

    def advance(amount: int) -> None:
        end_if_asked()
        lines.advance(amount)

    Thread(target=beat, daemon=True).start()
    try:
        yield advance
    finally:
        over.set()
    print(title, file=sys.stderr, flush=True)


def timings(records: Sequence[StageRecord]) -> Report:
    """Return the stages as JSON values; times in seconds."""
    stages: list[Report] = [asdict(record) for record in records]
    return {
        "stages": stages,
        "seconds": sum(record.seconds for record in records),
        "peak_nbytes": max((record.peak_nbytes for record in records), default=0),
    }


def stage_table(records: Sequence[StageRecord]) -> Table:
    """Return a table of the stages and their total."""
    table = Table("stage", box=None, pad_edge=False)
    table.add_column("seconds", justify="right")
    own = all(record.own_peak for record in records)
    table.add_column("peak memory" if own else "peak memory so far", justify="right")
    for record in records:
        table.add_row(record.title, f"{record.seconds:.1f}", format_nbytes(record.peak_nbytes))
    total = sum(record.seconds for record in records)
    table.add_row("all", f"{total:.1f}", format_nbytes(max((record.peak_nbytes for record in records), default=0)))
    return table
