"""One way of running a bundle's self-test, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..bundle import Bundle


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose. soc: of the compiled graphs. sysroot: an arm64 Python's. server: llama-server's file."""

    soc: int | None = None
    sysroot: Path | None = None
    server: Path | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """How one prompt was answered. equal: as expected. lossless: the same text with and without drafts.

    largest_gap: how far an expected token, or one written with drafts, was below the likeliest, in logits.
    """

    name: str
    tokens: int
    equal: bool
    lossless: bool
    largest_gap: float
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class LaneResult:
    """A lane's outcome. reason: why it could not run, or failed other than by its answers; empty: it ran."""

    lane: str
    engine: str = ""
    answers: Sequence[Answered] = ()
    tolerance: float = 0.0
    seconds: float = 0.0
    reason: str = ""
    ran: bool = True

    @property
    def passed(self) -> bool:
        scored = bool(self.answers) and all(each.tokens for each in self.answers)
        within = all(each.largest_gap <= self.tolerance for each in self.answers)
        return self.ran and not self.reason and scored and within


class Lane(Protocol):
    """Runs bundles on one kind of device."""

    name: str
    description: str

    def suits(self, bundle: Bundle) -> bool:
        """Return whether the bundle is for this kind of device."""

    def missing(self, options: Options) -> str:
        """Return what this machine lacks to run it, and the remedy; empty: nothing."""

    def run(self, root: Path, bundle: Bundle, options: Options) -> LaneResult:
        """Run the self-test of the bundle at `root`."""
