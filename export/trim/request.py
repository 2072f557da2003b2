"""What a trim is asked for, and what it found. Does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgedecode.pack.manifest import TrimEntry
from edgedecode.text.prompts import Prompt

from .prediction import Sweep, SweepRow
from .speeds import Speeds

__all__ = ["ANSWERS", "COVERAGE", "MAX_TOKENS", "PER_CATEGORY", "TrimRequest", "TrimResult"]

COVERAGE = 0.99
ANSWERS, MAX_TOKENS, PER_CATEGORY = 2, 128, 16


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Which pack, how small, and on what text it is found out. None takes the default that the help names."""

    pack: str | Path
    size: int | None = None
    """None: the best of several."""
    coverage: float = COVERAGE
    """Share of the held-out tokens that a recommended size has at least."""
    calibrate: Path | None = None
    text: Path | None = None
    """Text to count instead of answers."""
    categories: Path | None = None
    prompts: int | None = None
    """Most prompts to calibrate on; None: all."""
    answers: int = ANSWERS
    max_tokens: int = MAX_TOKENS
    per_category: int = PER_CATEGORY
    seed: int = 0
    report: bool = False
    """Measure whole answers too."""
    runtime: str | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class TrimResult:
    """What became of a pack."""

    root: Path
    runtime: str
    calibration: str
    sweep: Sweep
    chosen: SweepRow | None
    """What the pack has now; None: nothing was changed."""
    entry: TrimEntry | None
    files: Mapping[str, int] = field(default_factory=dict)
    """What was added: name → bytes."""
    prompts: Mapping[str, tuple[Prompt, ...]] = field(default_factory=dict)
    """Of each category, some to time whole answers on."""
    former: TrimEntry | None = None
    """The trim that the pack had before; it stays where nothing was changed."""
    speeds: Mapping[str, Speeds] = field(default_factory=dict)
    """By category, where whole answers were measured."""
