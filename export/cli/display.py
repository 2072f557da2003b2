"""Progress display of a long job on standard error, and its stages as a table and as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from threading import Event, Thread
from types import TracebackType
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from edgedecode.memory.sizes import format_nbytes
from edgedecode.user_notices import ProgressLines

from ..stages import StageRecord
from .signals import end_if_asked

Report: TypeAlias = "dict[str, str | int | float | Report | list[Report] | list[str] | list[int] | None]"


class LiveDisplay:
    """Progress on standard error: bars on a terminal, else a line every few seconds and after each stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task: TaskID | None = None
        self._title = ""
        self._lines: ProgressLines | None = None
        self._over = Event()

    def begin(self, title: str, total: int) -> None:
        end_if_asked()
        self._title = title
        self._task = self._progress.add_task(title, total=total or None)
        self._lines = None if self._console.is_terminal else ProgressLines(title, total)

    def advance(self, amount: int) -> None:
        end_if_asked()
        if self._task is not None:
            self._progress.advance(self._task, amount)
        if self._lines is not None:
            self._lines.advance(amount)

    def end(self) -> None:
        if self._task is not None:
            total = self._progress.tasks[self._task].total or 1
            self._progress.update(self._task, total=total, completed=total)
            self._task = None
        self._lines = None
        if not self._console.is_terminal:
            self._console.print(self._title, highlight=False, markup=False)

    def __enter__(self) -> LiveDisplay:
        self._progress.start()
        if not self._console.is_terminal:
            Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._progress.stop()

    def _beat(self) -> None:
        """Print a line when due, so that stages without progress updates show activity."""
        while not self._over.wait(1.0):
            if (lines := self._lines) is not None:
                lines.print_if_due()


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
