"""The stages of a long job: records each one's duration and peak memory, and shows its progress."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from edgedecode.memory.process_memory import peak_nbytes

ShownStage: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Shows a stage's progress, given its title and total (0: unknown); yields a function that takes amounts of it."""


@contextmanager
def unseen(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show no progress."""
    yield lambda amount: None


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

    shown: ShownStage = unseen
    records: list[StageRecord] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str, total: int = 0) -> Iterator[Callable[[int], None]]:
        """Time a stage. Yields a function to call with the amount of progress, out of `total`."""
        own_peak = _reset_peak()
        start = time.perf_counter()
        with self.shown(title, total) as advance:
            yield advance
        self.records.append(StageRecord(title, time.perf_counter() - start, peak_nbytes() or 0, own_peak))


def _reset_peak() -> bool:
    """Reset this process's peak resident memory; return whether the system supports that (Linux does)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    return False
