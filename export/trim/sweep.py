"""What a trim is asked for, and what each size promises: predicted speed over plain decoding, and the choice.

S(k) = tokens a round / (c(k + 1) + k·d), d a draft step in target passes (Leviathan 2211.17192 with measured costs);
MBSU(k) = tokens a round / (k·r + 1), r the draft's bytes over the target's (VocabTrim 2506.22694), where memory alone
decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgedecode.pack.entries import TrimCategory
from edgedecode.pack.manifest import Manifest, TrimEntry
from edgedecode.text.prompts import Prompt

from .forced_acceptance import LENGTHS, Acceptance
from .timing import PassTimes, Speeds

__all__ = ["Costs", "Prediction", "Sweep", "SweepRow", "TrimRequest", "TrimResult", "bytes_ratio", "predict"]

MARGIN = 1.005
"""So many times the whole draft's S a trimmed one's must be: less is nothing that can be measured."""
LEAST_TOKENS = 200
"""Held-out tokens, below which nothing is recommended: a share of so few says little."""
_HELD_ACCEPTANCE = 0.98
"""Below so much of the whole draft's tokens a round a category is said to lose."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a draft of one size costs: its step's seconds, and the bytes it reads over the target's."""

    step_seconds: float
    bytes_ratio: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """One size on one category: at the draft length that is best there."""

    acceptance: Acceptance
    length: int
    speed_up: float
    mbsu: float


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One size of vocabulary; the whole one has `size` of the vocabulary."""

    size: int
    costs: Costs
    categories: Mapping[str, Prediction]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that was found, sizes ascending."""

    rows: tuple[SweepRow, ...]
    whole: SweepRow
    target: PassTimes
    bound: float
    """Held-out coverage that a recommended size has at least."""
    main: str
    """The category that decides."""

    def row(self, size: int) -> SweepRow:
        return next(row for row in self.rows if row.size == size)

    @property
    def best(self) -> SweepRow | None:
        """The size of best S among those with enough coverage, where that wins over the whole draft; else None."""
        able = [row for row in self.rows if self.wins(row)]
        return max(able, key=lambda row: (row.categories[self.main].speed_up, -row.size), default=None)

    def wins(self, row: SweepRow) -> bool:
        """Return whether a size has enough coverage and promises more than the whole draft."""
        found = row.categories[self.main]
        whole = self.whole.categories[self.main]
        if found.acceptance.tokens < LEAST_TOKENS:
            return False
        return found.acceptance.coverage >= self.bound and found.speed_up > MARGIN * whole.speed_up

    def reason(self) -> str:
        """Return why no size wins."""
        tokens = self.whole.categories[self.main].acceptance.tokens
        if tokens < LEAST_TOKENS:
            return f"{tokens} held-out tokens are too few to tell, {LEAST_TOKENS} are not: give more prompts or text"
        covered = [row for row in self.rows if row.categories[self.main].acceptance.coverage >= self.bound]
        if not covered:
            most = max(self.rows, key=lambda row: row.categories[self.main].acceptance.coverage)
            found = most.categories[self.main].acceptance.coverage
            return f"no size covers {self.bound:.1%} of the held-out tokens; {most.size} ids cover {found:.1%}"
        row = max(covered, key=lambda row: row.categories[self.main].speed_up)
        found, whole = row.categories[self.main].speed_up, self.whole.categories[self.main].speed_up
        return f"the best, {row.size} ids, promises {found:.2f} times plain decoding, the full draft {whole:.2f}"

    def length(self, row: SweepRow) -> int:
        """Return the draft length that this size is best at on what decides."""
        return row.categories[self.main].length

    def entries(self, row: SweepRow) -> dict[str, TrimCategory]:
        """Return what the manifest keeps of a size."""
        length = self.length(row)
        return {name: self._entry(name, row, length) for name in row.categories}

    def warnings(self, row: SweepRow) -> tuple[str, ...]:
        """Say, a sentence each, where a category loses, and what."""
        entries = self.entries(row)
        few = [f"{name} ({entry.tokens})" for name, entry in entries.items() if entry.tokens < LEAST_TOKENS]
        losing = [f"{name} {lost}" for name, entry in entries.items() if (lost := _losses(entry, self.bound))]
        return (
            *losing,
            *([f"fewer than {LEAST_TOKENS} tokens say little of a category: {', '.join(few)}"] if few else []),
        )

    def _entry(self, name: str, row: SweepRow, length: int) -> TrimCategory:
        found, whole = row.categories[name], self.whole.categories[name]
        return TrimCategory(
            tokens=found.acceptance.tokens,
            coverage=found.acceptance.coverage,
            acceptance=found.acceptance.per_round[length],
            acceptance_full=whole.acceptance.per_round[length],
            speed_up=found.speed_up,
            speed_up_full=whole.speed_up,
            mbsu=found.mbsu,
            mbsu_full=whole.mbsu,
        )


def predict(acceptance: Acceptance, costs: Costs, target: PassTimes) -> Prediction:
    """Return what drafts with these costs promise at the best draft length."""
    speeds = {length: _speed_up(acceptance, costs, target, length) for length in LENGTHS}
    length = max(speeds, key=lambda length: speeds[length])
    mbsu = max(acceptance.per_round[k] / (k * costs.bytes_ratio + 1) for k in LENGTHS)
    return Prediction(acceptance, length, speeds[length], mbsu)


def bytes_ratio(manifest: Manifest, *, size: int) -> float:
    """Return the draft's bytes over the target's, the draft's head cut to `size` rows; by their weights files.

    A head's row has its weights and a float32 scale a block; where the embedding is a table of its own it counts too.
    """
    draft = manifest.models["draft"]
    scales = 4 * draft.hidden_size / draft.block_size if draft.head_bits <= 8 and draft.block_size else 0.0
    row_nbytes = draft.hidden_size * draft.head_bits / 8 + scales
    left = manifest.weights_nbytes("draft") - (draft.rows - size) * row_nbytes
    return max(0.0, left) / max(1, manifest.weights_nbytes("target"))


def _speed_up(acceptance: Acceptance, costs: Costs, target: PassTimes, length: int) -> float:
    d = costs.step_seconds / target.seconds[1]
    return acceptance.per_round[length] / (target.c(length + 1) + length * d)


def _losses(entry: TrimCategory, bound: float) -> str:
    """Return what a category loses; empty: not enough for a warning."""
    lost = []
    if entry.acceptance < _HELD_ACCEPTANCE * entry.acceptance_full:
        lost.append(f"falls to {entry.acceptance:.2f} tokens a round from {entry.acceptance_full:.2f}")
    speed_up, whole = entry.speed_up, entry.speed_up_full
    if speed_up is not None and whole is not None and MARGIN * speed_up < whole:
        lost.append(f"falls to {speed_up:.2f} times plain decoding from {whole:.2f}")
    if entry.coverage >= bound and not lost:
        return ""
    return ", ".join([f"has {1 - entry.coverage:.1%} of its tokens outside", *lost])


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Which pack, how small, and on what text it is found out. None takes the default that the help names."""

    pack: str | Path
    size: int | None = None
    """None: the best of several."""
    coverage: float = 0.99
    """Share of the held-out tokens that a recommended size has at least."""
    calibrate: Path | None = None
    text: Path | None = None
    """Text to count instead of answers."""
    categories: Path | None = None
    prompts: int | None = None
    """Most prompts to calibrate on; None: all."""
    answers: int = 2
    max_tokens: int = 128
    per_category: int = 16
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
