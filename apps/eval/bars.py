"""Progress of an evaluation as bars on standard error, where that is a terminal. Knows rich alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

__all__ = ["Bars"]


class Bars:
    """One bar a step, gone when everything is done. `title` stands before each step's own."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._title = title
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    @contextmanager
    def step(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a step of `total` parts; inside, it is told how many more are done."""
        task = self._progress.add_task(f"{self._title}: {name}", total=total)
        yield lambda done: self._progress.advance(task, done)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
