"""What a device's passes cost, and the draft length that follows from them and from recorded rounds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.errors import InputError, cause
from edgedecode.typed_json import JsonValue, Seconds, typed

from .device.decode import Round
from .request import Device

LENGTHS = (2, 4, 8)
"""Draft lengths that are tried."""
_ROW_SHARE = 0.15
"""Assumed cost of each further row of a pass, in one-row passes: measured on engines' kernels, docs/measurements.md."""
_LEAST_SECONDS, _MOST_SECONDS = 1e-7, 1e5
"""Of a pass in a profile."""
_DRAFT_OVERHEAD = 2e-4
"""Assumed seconds of a draft step besides reading its weights."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of a target pass by its number of rows, and of a draft step. name: `assumed`, or the profile's."""

    name: str
    passes: Mapping[int, float]
    draft: float

    def pass_seconds(self, rows: int) -> float:
        """Return the seconds of a pass, by the nearest measured widths."""
        if rows in self.passes:
            return self.passes[rows]
        below = max((each for each in self.passes if each < rows), default=min(self.passes))
        above = min((each for each in self.passes if each > rows), default=max(self.passes))
        if above == below or not below < rows < above:
            return self.passes[below] * max(1.0, rows / below)
        share = (rows - below) / (above - below)
        return self.passes[below] * (1 - share) + self.passes[above] * share

    def padded(self, widths: Sequence[int]) -> "Speeds":
        """Return the speeds where passes are padded to the next of these widths; empty: they are not."""
        if not widths:
            return self
        rows = range(1, widths[-1] + 1)
        passes = {count: self.pass_seconds(next(width for width in widths if width >= count)) for count in rows}
        return replace(self, passes=passes)

    @property
    def least_chance(self) -> float:
        """Return the chance of a draft below which a longer draft costs more than it gains."""
        one, more = self.pass_seconds(1), self.pass_seconds(5)
        return round(min(0.9, max(0.05, ((more - one) / 4 + self.draft) / one)), 3)


@dataclass(frozen=True, slots=True)
class Speed:
    """Expected tokens per second at a draft length; 0: plain decoding."""

    length: int
    per_second: float


def assumed_speeds(device: Device, *, target_nbytes: int, draft_nbytes: int) -> Speeds:
    """Assume that passes are bound by reading the weights."""
    one = target_nbytes / device.bandwidth + _DRAFT_OVERHEAD
    passes = {rows: one * (1 + _ROW_SHARE * (rows - 1)) for rows in range(1, max(LENGTHS) + 2)}
    return Speeds("assumed", passes, draft_nbytes / device.bandwidth + _DRAFT_OVERHEAD)


@dataclass(frozen=True, slots=True)
class _DraftCosts:
    first_seconds: Seconds
    next_seconds: Seconds


@dataclass(frozen=True, slots=True)
class _Costs:
    target_seconds: Mapping[str, Seconds]
    drafts: Mapping[str, _DraftCosts]


@dataclass(frozen=True, slots=True)
class _Conditions:
    device: str
    pack: str


@dataclass(frozen=True, slots=True)
class _Bench:
    conditions: _Conditions
    costs: _Costs


def measured_speeds(path: Path, *, pack: str) -> Speeds:
    """Read the last line of `edgedecode bench --json`, run on the device with this pack. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        value: JsonValue = json.loads(lines[-1]) if lines else None
        found = typed(value, _Bench, "profile")
        passes = {int(rows): seconds for rows, seconds in found.costs.target_seconds.items()}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"--profile {path} is no profile ({cause(error)}): give the output of `edgedecode bench --json` on the "
            f"device"
        ) from None
    if 1 not in passes:
        raise InputError(f"--profile {path} has no time of a pass of one row: measure again")
    if wrong := [seconds for seconds in passes.values() if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS]:
        raise InputError(f"--profile {path} has a pass of {wrong[0]:g} s, which cannot be right: measure again")
    measured = found.conditions.pack.split(",")[0]
    if measured != pack:
        raise InputError(f"--profile {path} was measured with the pack {measured!r}, not {pack!r}: measure this one")
    drafts = found.costs.drafts.get("model")
    return Speeds(found.conditions.device, passes, passes[1] if drafts is None else drafts.next_seconds)


def best_length(speeds: Speeds, rounds: Mapping[int, Sequence[Sequence[Round]]]) -> tuple[Speed, Speed]:
    """Return the expected speeds of plain decoding and of the best draft length, whose length is 0 if none is faster.

    rounds: by draft length, those of each recorded answer.
    """
    plain = Speed(0, 1 / speeds.pass_seconds(1))
    tried = [Speed(length, _per_second(speeds, found)) for length, found in rounds.items()]
    return plain, max([plain, *tried], key=lambda speed: speed.per_second)


def _per_second(speeds: Speeds, answers: Sequence[Sequence[Round]]) -> float:
    """Return the tokens per second of recorded rounds without the first, which reads the prompt."""
    later = [one for answer in answers for one in answer[1:]]
    seconds = sum(speeds.pass_seconds(1 + len(one.drafts)) + speeds.draft * (len(one.drafts) + 1) for one in later)
    tokens = sum(len(one.chosen) for one in later)
    return tokens / seconds if tokens else 0.0
