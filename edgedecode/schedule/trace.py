"""A trace: what a policy was told and what it planned, line by line, so that its choices can be replayed and read.

A JSON-lines file: one line says what the policy is and what it knew, then every line has the signals of a round and
the plan made of them. It holds counts and times, no text and no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from edgedecode.decoding.policy import Plan, Signals
from edgedecode.errors import InputError
from edgedecode.user_notices import notice

from .experience import Experience
from .scheduler import Scheduler, SchedulerOptions

__all__ = ["Recorder", "Replayed", "replay"]

FORMAT = 1


class Recorder:
    """Implements `Policy`: asks the scheduler it wraps, and writes what both said.

    A file that cannot be opened raises InputError; one that cannot be written later ends the trace with a notice, and
    decoding goes on.
    """

    def __init__(self, scheduler: Scheduler, path: Path, *, pack: str) -> None:
        self._scheduler = scheduler
        self._path = path
        head = {
            "edgedecode_trace": FORMAT,
            "pack": pack,
            "free": sorted(scheduler.free),
            "models": [name for group in scheduler.variants.arms.values() for name in group],
            "heads": [list(group) for group in scheduler.variants.arms.values() if len(group) > 1],
            "options": asdict(scheduler.options),
            "experience": scheduler.experience.as_dict(),
        }
        self._stream: IO[str] | None = None
        try:
            self._stream = path.open("w", encoding="utf-8")
            self._write(head)
        except OSError as error:
            self._drop()
            raise InputError(f"the trace {path} cannot be written: {error.strerror or error}") from None

    def plan(self, signals: Signals) -> Plan:
        plan = self._scheduler.plan(signals)
        try:
            self._write({"signals": asdict(signals), "plan": asdict(plan)})
        except OSError as error:
            self._drop()
            notice(f"the trace {self._path} ends here, it cannot be written: {error.strerror or error}")
        return plan

    def close(self) -> None:
        self._drop()

    def _write(self, value: Mapping[str, object]) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(value) + "\n")
            self._stream.flush()  # a trace is most wanted of a run that did not end well

    def _drop(self) -> None:
        """Close the file; what could be written was written line by line."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):  # it tries again to write the line that failed
                stream.close()


class Replayed:
    """One round of a trace: the signals, the plan that was recorded, and the one a fresh scheduler makes of them."""

    __slots__ = ("plan", "recorded", "signals")

    def __init__(self, signals: Signals, recorded: Plan, plan: Plan) -> None:
        self.signals, self.recorded, self.plan = signals, recorded, plan


def replay(path: Path, *, pack: str | None = None) -> Iterator[Replayed]:
    """Feed a trace's signals to a scheduler that knows what the recorded one knew at its start.

    pack: the digest the trace must be of; None takes any. Raises InputError, with the line's number, for what is no
    trace, and for another pack's.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"the trace {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"the trace {path} is not text: {error}") from None
    scheduler = _scheduler(path, lines[0] if lines else "", pack=pack)
    for number, line in enumerate(lines[1:], start=2):
        try:
            value = json.loads(line)
            signals, recorded = Signals.from_dict(value["signals"]), Plan.from_dict(value["plan"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"line {number} of the trace {path} is not a round: {error}") from None
        yield Replayed(signals, recorded, scheduler.plan(signals))


def _scheduler(path: Path, line: str, *, pack: str | None) -> Scheduler:
    try:
        head: dict[str, Any] = json.loads(line)
        if head["edgedecode_trace"] != FORMAT:
            raise InputError(f"the trace {path} has format {head['edgedecode_trace']}, this version reads {FORMAT}")
        if pack is not None and head["pack"] != pack:
            raise InputError(f"the trace {path} is of another pack: give the pack it was recorded with")
        return Scheduler(
            free=head["free"],
            models=head["models"],
            heads=head.get("heads", ()),
            experience=Experience.from_dict(head["experience"]),
            options=SchedulerOptions(**head["options"]),
        )
    except InputError:  # says itself what is wrong; it is a ValueError too
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the first line of {path} is not the head of a trace: {error}") from None
