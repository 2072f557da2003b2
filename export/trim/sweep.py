"""The request for a trim, the predicted speed-up of each size, and the choice among them.

S(k) = tokens per round / (c(k + 1) + k·d): the speed-up over plain decoding, where c is the measured cost of a target
pass by width and d that of a draft step, both in single-token target passes (Leviathan 2211.17192).
MBSU(k) = tokens per round / (k·r + 1): the memory-bound speed-up, where r is the draft's bytes over the target's
(VocabTrim 2506.22694).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgedecode.pack.entries import TrimCategory, TrimEntry
from edgedecode.pack.manifest import Manifest
from edgedecode.text.prompts import Prompt

from .forced_acceptance import LENGTHS, Acceptance
from .timing import PassTimes, Speeds

MARGIN = 1.005
"""A recommended trim's S is at least this many times the full draft's: smaller gains are below measurement noise."""
LEAST_TOKENS = 200
"""Below this number of held-out tokens nothing is recommended: coverage of fewer is unreliable."""
_HELD_ACCEPTANCE = 0.98
"""A category is reported as losing if its tokens per round fall below this share of the full draft's."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a draft of one size: seconds per step, and bytes read relative to the target's."""

    step_seconds: float
    bytes_ratio: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction for one size on one category, at the best draft length."""

    acceptance: Acceptance
    length: int
    speed_up: float
    mbsu: float


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Predictions for one vocabulary size; for the full vocabulary, `size` is its size."""

    size: int
    costs: Costs
    categories: Mapping[str, Prediction]


@dataclass(frozen=True, slots=True)
class Sweep:
    """All measured sizes, ascending."""

    rows: tuple[SweepRow, ...]
    whole: SweepRow
    target: PassTimes
    bound: float
    """Minimum held-out coverage of a recommended size."""
    main: str
    """The category on which sizes are compared."""

    def row(self, size: int) -> SweepRow:
        return next(row for row in self.rows if row.size == size)

    @property
    def best(self) -> SweepRow | None:
        """The size with the best S among those that win; None if none does."""
        winning = [row for row in self.rows if self.wins(row)]
        return max(winning, key=lambda row: (row.categories[self.main].speed_up, -row.size), default=None)

    def wins(self, row: SweepRow) -> bool:
        """Return whether a size has enough coverage and a higher predicted speed-up than the full draft."""
        found = row.categories[self.main]
        whole = self.whole.categories[self.main]
        if found.acceptance.tokens < LEAST_TOKENS:
            return False
        return found.acceptance.coverage >= self.bound and found.speed_up > MARGIN * whole.speed_up

    def reason(self) -> str:
        """Return why no size wins."""
        tokens = self.whole.categories[self.main].acceptance.tokens
        if tokens < LEAST_TOKENS:
            return f"{tokens} held-out tokens are too few, {LEAST_TOKENS} are needed: give more prompts or text"
        covered = [row for row in self.rows if row.categories[self.main].acceptance.coverage >= self.bound]
        if not covered:
            most = max(self.rows, key=lambda row: row.categories[self.main].acceptance.coverage)
            found = most.categories[self.main].acceptance.coverage
            return f"no size covers {self.bound:.1%} of the held-out tokens; {most.size} ids cover {found:.1%}"
        row = max(covered, key=lambda row: row.categories[self.main].speed_up)
        found, whole = row.categories[self.main].speed_up, self.whole.categories[self.main].speed_up
        return (
            f"the best size, {row.size} ids, is predicted {found:.2f}x over plain decoding, the full draft {whole:.2f}x"
        )

    def length(self, row: SweepRow) -> int:
        """Return this size's best draft length on the main category."""
        return row.categories[self.main].length

    def entries(self, row: SweepRow) -> dict[str, TrimCategory]:
        """Return the manifest's entry of each category for this size."""
        length = self.length(row)
        return {name: self._entry(name, row, length) for name in row.categories}

    def warnings(self, row: SweepRow) -> tuple[str, ...]:
        """Return one line for each category that loses, and one for categories with too few tokens."""
        entries = self.entries(row)
        few = [f"{name} ({entry.tokens})" for name, entry in entries.items() if entry.tokens < LEAST_TOKENS]
        losing = [f"{name} {lost}" for name, entry in entries.items() if (lost := _losses(entry, self.bound))]
        return (
            *losing,
            *([f"categories with fewer than {LEAST_TOKENS} tokens are unreliable: {', '.join(few)}"] if few else []),
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
    """Return the prediction for drafts with these costs, at the best draft length."""
    speeds = {length: _speed_up(acceptance, costs, target, length) for length in LENGTHS}
    length = max(speeds, key=lambda length: speeds[length])
    mbsu = max(acceptance.per_round[k] / (k * costs.bytes_ratio + 1) for k in LENGTHS)
    return Prediction(acceptance, length, speeds[length], mbsu)


def bytes_ratio(manifest: Manifest, *, size: int) -> float:
    """Return the draft's bytes over the target's, with the draft's head cut to `size` rows, from their weights files.

    A row of the head has its weights and a float32 scale per block. A separate embedding table is counted too.
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
    """Return a description of a category's losses; empty if they need no warning."""
    lost = []
    if entry.acceptance < _HELD_ACCEPTANCE * entry.acceptance_full:
        lost.append(f"falls from {entry.acceptance_full:.2f} to {entry.acceptance:.2f} tokens per round")
    speed_up, whole = entry.speed_up, entry.speed_up_full
    if speed_up is not None and whole is not None and MARGIN * speed_up < whole:
        lost.append(f"falls from {whole:.2f}x to {speed_up:.2f}x over plain decoding")
    if entry.coverage >= bound and not lost:
        return ""
    return ", ".join([f"has {1 - entry.coverage:.1%} of its tokens outside the vocabulary", *lost])


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """The pack, the size, and the texts to measure on. None selects the default documented in the help."""

    pack: str | Path
    size: int | None = None
    """None: the best of several."""
    coverage: float = 0.99
    """Minimum share of the held-out tokens that a recommended size covers."""
    calibrate: Path | None = None
    text: Path | None = None
    """Text to count instead of the target's answers."""
    categories: Path | None = None
    prompts: int | None = None
    """Maximum number of prompts to calibrate on; None: all."""
    answers: int = 2
    max_tokens: int = 128
    per_category: int = 16
    seed: int = 0
    report: bool = False
    """Also time full answers."""
    runtime: str | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class TrimResult:
    """The outcome of a trim."""

    root: Path
    runtime: str
    calibration: str
    sweep: Sweep
    chosen: SweepRow | None
    """The size that the pack now has; None: the pack was not changed."""
    entry: TrimEntry | None
    files: Mapping[str, int] = field(default_factory=dict)
    """Added files: name → bytes."""
    prompts: Mapping[str, tuple[Prompt, ...]] = field(default_factory=dict)
    """Some prompts of each category, to time full answers on."""
    former: TrimEntry | None = None
    """The trim that the pack had before; still there if the pack was not changed."""
    speeds: Mapping[str, Speeds] = field(default_factory=dict)
    """Measured speed-ups of full answers, by category."""
