"""The figures of a memory sweep: values only, JSON-serialisable. And which budgets are tried."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.memory.peaks_child import MemorySample
from edgedecode.memory.process_memory import ProcessMemory
from edgedecode.memory.sizes import format_nbytes

__all__ = ["Chat", "SweepRun", "budgets"]

TOLERANCE, TOLERANCE_NBYTES = 0.05, 8 * 10**6
"""How far a plan may be from what was measured: the larger of the two."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What a process told of its chat. `longest`: the most tokens of its conversation, of the `context` it had."""

    planned_nbytes: int
    """The most that was leased at the end of an answer."""
    peak: ProcessMemory
    context: int
    longest: int
    drafters: str
    given_up: tuple[str, ...]
    tokens_per_second: float
    samples: tuple[MemorySample, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A chat under a budget; None: no limit but the machine's. `failure`: why there was no chat to its end."""

    engine: str
    budget_nbytes: int | None
    chat: Chat | None
    failure: str = ""

    @property
    def over_nbytes(self) -> int:
        """By how much the process held more than its budget at its peak; 0: it kept it."""
        if self.chat is None or self.budget_nbytes is None:
            return 0
        return max(0, self.chat.peak.resident - self.budget_nbytes)

    @property
    def kept(self) -> bool:
        """The chat came to its end within its budget."""
        return self.chat is not None and not self.over_nbytes

    @property
    def verdict(self) -> str:
        if self.chat is None:
            return "aborted"
        return f"over by {format_nbytes(self.over_nbytes)}" if self.over_nbytes else "kept"

    @property
    def unused_nbytes(self) -> int | None:
        """By how much the plan was above the peak."""
        return None if self.chat is None else self.chat.planned_nbytes - self.chat.peak.resident

    @property
    def as_planned(self) -> bool:
        """The peak was as near to the plan as it should be, on either side."""
        if self.chat is None or self.unused_nbytes is None:
            return False
        return abs(self.unused_nbytes) <= max(TOLERANCE_NBYTES, TOLERANCE * self.chat.planned_nbytes)


def budgets(least: int, whole: int, count: int) -> tuple[int | None, ...]:
    """Return `count` budgets at equal distances from the smallest to all that is wanted, the last unlimited."""
    limited = count - 1
    step = (whole - least) / max(1, limited - 1)
    sizes = dict.fromkeys(least + round(index * step) for index in range(limited))
    return (*sizes, None)
