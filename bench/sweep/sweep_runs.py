"""The figures of a memory sweep, JSON-serialisable, and its budgets."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.memory.sizes import format_nbytes

TOLERANCE, TOLERANCE_NBYTES = 0.05, 8 * 10**6
"""Allowed difference between plan and measurement: the larger of the two."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The figures of a chat. `longest`: the most tokens that the conversation reached in its `context`."""

    planned_nbytes: int
    """The most memory that was reserved at the end of an answer."""
    peak_nbytes: int
    """The resident peak of its process."""
    context: int
    longest: int
    drafters: str
    given_up: tuple[str, ...]
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A chat under a budget; None: only the machine's limit. `failure`: the reason if the chat did not finish."""

    engine: str
    budget_nbytes: int | None
    chat: Chat | None
    failure: str = ""

    @property
    def over_nbytes(self) -> int:
        """Bytes by which the resident peak exceeds the budget; 0 if it does not."""
        if self.chat is None or self.budget_nbytes is None:
            return 0
        return max(0, self.chat.peak_nbytes - self.budget_nbytes)

    @property
    def kept(self) -> bool:
        """Whether the chat finished within its budget."""
        return self.chat is not None and not self.over_nbytes

    @property
    def verdict(self) -> str:
        if self.chat is None:
            return "aborted"
        return f"over by {format_nbytes(self.over_nbytes)}" if self.over_nbytes else "kept"

    @property
    def unused_nbytes(self) -> int | None:
        """The plan less the resident peak."""
        return None if self.chat is None else self.chat.planned_nbytes - self.chat.peak_nbytes

    @property
    def as_planned(self) -> bool:
        """Whether the peak is within the tolerance of the plan, on either side."""
        if self.chat is None or self.unused_nbytes is None:
            return False
        return abs(self.unused_nbytes) <= max(TOLERANCE_NBYTES, TOLERANCE * self.chat.planned_nbytes)


def budgets(least: int, whole: int, count: int) -> tuple[int | None, ...]:
    """Return `count` budgets: evenly spaced from `least` to `whole`, the memory without cuts, then unlimited."""
    limited = count - 1
    step = (whole - least) / max(1, limited - 1)
    sizes = dict.fromkeys(least + round(index * step) for index in range(limited))
    return (*sizes, None)
