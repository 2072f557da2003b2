"""Which of several engines runs a pack, from what each says of itself and what was measured. Does no work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgedecode.typed_json import Count, Seconds

from .engine_factory import Refusal

__all__ = ["SLACK_NBYTES", "Candidate", "Choice", "Speeds", "choose", "room"]

SLACK_NBYTES = 2 * 2**20
"""What a process grows by before a model is open, beside what is leased."""


def room(name: str, context: int | None) -> str:
    """Name what an engine's need of memory depends on beside the pack: the positions of a session, None: as usual."""
    return f"{name} {context or 'usual'}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine by its runtime's name. version None: it is not installed. refusal None: it can run the pack."""

    name: str
    version: str | None
    refusal: Refusal | None = None

    @property
    def able(self) -> bool:
        return self.version is not None and self.refusal is None

    @property
    def why_not(self) -> str:
        """Say in a few words why it is not able."""
        return "it is not installed" if self.version is None else self.refusal.reason if self.refusal else ""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured seconds a token of plain decoding by engine, why an engine gave none, and when that was (UTC)."""

    seconds: Mapping[str, Seconds]
    refused: Mapping[str, str] = field(default_factory=dict)
    taken: str = ""
    needs: Mapping[str, Count] = field(default_factory=dict)
    """Bytes that a session takes beside a process that has not loaded the engine, by `room`: the fewest measured."""
    least: Mapping[str, Count] = field(default_factory=dict)
    """Bytes that must be free for an engine that did not fit fewer, by `room`; the actual need may be higher."""
    runs: Mapping[str, Count] = field(default_factory=dict)
    """Bytes that the smallest session takes, as `needs`, of an engine that did not fit a usual one, by `room`."""

    def fits(self, name: str, *, context: int | None, free_nbytes: int) -> bool | None:
        """Tell whether a session on this engine fits what a budget has free; None: that is not known.

        A measured need is an upper bound: an engine may load a model in less where less is free.
        """
        place = room(name, context)
        if place in self.needs and self.needs[place] + SLACK_NBYTES <= free_nbytes:
            return True
        return False if free_nbytes < max(1, self.least.get(place, 0)) else None

    def runs_in(self, name: str, *, context: int | None, free_nbytes: int) -> bool:
        """Tell whether a session that gave up what can be given up is known to fit."""
        place = room(name, context)
        return place in self.runs and self.runs[place] + SLACK_NBYTES <= free_nbytes

    @property
    def line(self) -> str:
        """Return the figures in one line, the fastest first."""
        ordered = sorted(self.seconds.items(), key=lambda item: (item[1], item[0]))
        figures = [f"{name} {1000 * seconds:.2f} ms" for name, seconds in ordered]
        return ", ".join(figures + [f"{name} refused ({reason})" for name, reason in sorted(self.refused.items())])


@dataclass(frozen=True, slots=True)
class Choice:
    """Engines that can run the pack, the one to take first; the others follow where it then cannot be opened."""

    names: tuple[str, ...]
    reason: str
    broken: tuple[str, ...] = ()
    """Of engines that are installed and do not run, a sentence each."""


def choose(
    candidates: Sequence[Candidate], *, speeds: Speeds | None, preferred: str, too_large: Sequence[str] = ()
) -> Choice:
    """Take the fastest engine that is able; unmeasured ones come last, the `preferred` one first among them.

    too_large: those that do not fit the budget, which come after all others, in this order. Where only one is able
    nothing needs to be measured. Without any, `names` is empty and the reason says why.
    """
    able = [candidate.name for candidate in candidates if candidate.able]
    place = {name: number for number, name in enumerate(too_large, start=1)}
    broken = tuple(each.why_not for each in candidates if each.refusal is not None and each.refusal.broken)
    rejected = "; ".join(f"{each.name}: {each.why_not}" for each in candidates if not each.able)
    if len(able) < 2:
        return Choice(tuple(able), rejected or "it is the only engine here", broken)
    if speeds is None or not set(able) & set(speeds.seconds):
        line = speeds.line if speeds else ""
        reason = line or "not measured yet: the first use does it, or devices --measure"
        return Choice(
            tuple(sorted(able, key=lambda name: (place.get(name, 0), name != preferred, name))), reason, broken
        )
    known = speeds.seconds
    fastest = sorted(able, key=lambda name: (name not in known, known.get(name, 0.0), name != preferred, name))
    ordered = sorted(fastest, key=lambda name: place.get(name, 0))
    when = f", measured {speeds.taken}" if speeds.taken else ""
    return Choice(tuple(ordered), f"{speeds.line} a token{when}", broken)
