"""Chooses among several engines from their own answers and measured speeds. Pure data and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgedecode.typed_json import Count, Seconds

from .engine_factory import Refusal

SLACK_NBYTES = 2 * 2**20
"""Growth of a process before a model is open, in addition to its leases."""


def room(name: str, context: int | None) -> str:
    """Return the cache key of an engine's memory need: its name and the session's positions, None: the default."""
    return f"{name} {context or 'usual'}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine, by its runtime's name. version None: not installed. refusal None: it can run the pack."""

    name: str
    version: str | None
    refusal: Refusal | None = None

    @property
    def able(self) -> bool:
        return self.version is not None and self.refusal is None

    @property
    def why_not(self) -> str:
        """A short reason why it is not able; empty if it is."""
        return "it is not installed" if self.version is None else self.refusal.reason if self.refusal else ""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured seconds per token of baseline decoding by engine, reasons of refusals, and the time taken (UTC)."""

    seconds: Mapping[str, Seconds]
    refused: Mapping[str, str] = field(default_factory=dict)
    taken: str = ""
    needs: Mapping[str, Count] = field(default_factory=dict)
    """Bytes that the engine and a session add to a process that has not loaded the engine, by `room`."""
    least: Mapping[str, Count] = field(default_factory=dict)
    """Lower bound of the free bytes that an engine needs which did not fit, by `room`; the need may be higher."""
    runs: Mapping[str, Count] = field(default_factory=dict)
    """The same as `needs` for the smallest session, of an engine whose default session did not fit, by `room`."""

    def fits(self, name: str, *, context: int | None, free_nbytes: int) -> bool | None:
        """Return whether a session on this engine fits the free bytes; None: unknown.

        A measured need is an upper bound: an engine may load a model in less memory when less is free.
        """
        key = room(name, context)
        if key in self.needs and self.needs[key] + SLACK_NBYTES <= free_nbytes:
            return True
        return False if free_nbytes < max(1, self.least.get(key, 0)) else None

    def runs_in(self, name: str, *, context: int | None, free_nbytes: int) -> bool:
        """Return whether the smallest session, without anything optional, is known to fit."""
        key = room(name, context)
        return key in self.runs and self.runs[key] + SLACK_NBYTES <= free_nbytes

    @property
    def line(self) -> str:
        """The figures in one line, fastest first."""
        ordered = sorted(self.seconds.items(), key=lambda item: (item[1], item[0]))
        figures = [f"{name} {1000 * seconds:.2f} ms" for name, seconds in ordered]
        return ", ".join(figures + [f"{name} refused ({reason})" for name, reason in sorted(self.refused.items())])


@dataclass(frozen=True, slots=True)
class Choice:
    """Engines that can run the pack, in the order to try them: the next one is for when an engine fails to open."""

    names: tuple[str, ...]
    reason: str
    broken: tuple[str, ...] = ()
    """Why each installed engine that does not run at all is broken, a sentence each."""


def choose(
    candidates: Sequence[Candidate], *, speeds: Speeds | None, preferred: str, too_large: Sequence[str] = ()
) -> Choice:
    """Order the able engines by speed; unmeasured ones come last, the `preferred` one first among them.

    too_large: engines that do not fit the budget; they follow all others, in this order. Without an able engine,
    `names` is empty and the reason says why.
    """
    able = [candidate.name for candidate in candidates if candidate.able]
    rank = {name: number for number, name in enumerate(too_large, start=1)}
    broken = tuple(each.why_not for each in candidates if each.refusal is not None and each.refusal.broken)
    rejected = "; ".join(f"{each.name}: {each.why_not}" for each in candidates if not each.able)
    if len(able) < 2:
        return Choice(tuple(able), rejected or "it is the only engine here", broken)
    if speeds is None or not set(able) & set(speeds.seconds):
        line = speeds.line if speeds else ""
        reason = line or "not measured yet: the first use or devices --measure does it"
        return Choice(
            tuple(sorted(able, key=lambda name: (rank.get(name, 0), name != preferred, name))), reason, broken
        )
    known = speeds.seconds
    fastest = sorted(able, key=lambda name: (name not in known, known.get(name, 0.0), name != preferred, name))
    ordered = sorted(fastest, key=lambda name: rank.get(name, 0))
    when = f", measured {speeds.taken}" if speeds.taken else ""
    return Choice(tuple(ordered), f"{speeds.line} a token{when}", broken)
