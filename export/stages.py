"""The stages of a long job: records each one's duration and peak memory, and drives a progress display."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgedecode.memory.process_memory import peak_nbytes


class Display(Protocol):
    """Shows progress: `begin` names a stage and its total (0: unknown), `advance` moves it, `end` finishes it.

    `end` is not called for a stage that fails; the display is only closed.
    """

    def begin(self, title: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One finished stage. `peak_nbytes` is the process's peak resident memory within the stage if `own_peak`.

    If the system cannot reset the peak, `peak_nbytes` also covers the earlier stages.
    """

    title: str
    seconds: float
    peak_nbytes: int
    own_peak: bool


@dataclass(slots=True)
class Stages:
    """Runs stages in sequence and keeps their records."""

    display: Display | None = None
    records: list[StageRecord] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str, total: int = 0) -> Iterator[Callable[[int], None]]:
        """Time a stage. Yields a function to call with the amount of progress, out of `total`."""
        own_peak = _reset_peak()
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


def _reset_peak() -> bool:
    """Reset this process's peak resident memory; return whether the system supports that (Linux does)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    return False
