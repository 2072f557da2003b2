"""The stages of a long job: how long each took and how much memory it held. A display shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgedecode.memory.process_memory import peak_nbytes

__all__ = ["StageRecord", "Stages"]


class Display(Protocol):
    """Shows progress: `begin` names a stage and its total (0: unknown), `advance` moves it, `end` finishes it.

    A stage that fails is never ended: closing the display is all that follows.
    """

    def begin(self, title: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One finished stage. `peak_nbytes` is the process's highest resident memory, within the stage if `own_peak`.

    Where the system cannot forget an earlier stage's, it is the highest up to the stage's end.
    """

    title: str
    seconds: float
    peak_nbytes: int
    own_peak: bool


@dataclass(slots=True)
class Stages:
    """Runs stages one after another and keeps their records."""

    display: Display | None = None
    records: list[StageRecord] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str, total: int = 0) -> Iterator[Callable[[int], None]]:
        """Time a stage; the value is called with the amount done, out of `total`."""
        own_peak = _forget_peak()
        start = time.perf_counter()
        if self.display is not None:
            self.display.begin(title, total)
        yield self._advance
        if self.display is not None:
            self.display.end()
        self.records.append(StageRecord(title, time.perf_counter() - start, peak_nbytes() or 0, own_peak))

    def _advance(self, amount: int) -> None:
        if self.display is not None:
            self.display.advance(amount)


def _forget_peak() -> bool:
    """Make Linux measure this process's highest resident memory from here on; return whether it does."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    return False
