"""Traces record every call to a policy and its result, so that its decisions can be replayed and inspected.

A trace is a JSON-lines file. The first line holds the policy's options and experience, every other line one call: the
start of an answer, a plan with its signals, or a round's cost with scores. It holds counts and times, but no text and
no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from edgedecode.decoding.policy import Plan, RoundCost, Score, Signals
from edgedecode.errors import InputError
from edgedecode.user_notices import notice

from .experience import Experience
from .scheduler import Scheduler, SchedulerOptions

FORMAT = 4


class _Head(msgspec.Struct):
    edgedecode_trace: int
    pack: str
    free: list[str]
    models: list[str]
    heads: list[list[str]]
    options: SchedulerOptions
    experience: dict[str, Any]


class _Call(msgspec.Struct, omit_defaults=True):
    """One call: `begin(kind)` returned `rest`, or `plan(signals)` returned `plan`, or `observe(cost, scores)`."""

    rest: int | None = None
    kind: str = ""
    signals: Signals | None = None
    plan: Plan | None = None
    cost: RoundCost | None = None
    scores: tuple[Score, ...] = ()


class Recorder:
    """Implements `Policy`: calls the scheduler it wraps, and records each call with its result.

    Raises InputError if the file cannot be opened. If it cannot be written later, the trace ends with a notice and
    decoding continues.
    """

    def __init__(self, scheduler: Scheduler, path: Path, *, pack: str) -> None:
        self._scheduler = scheduler
        self._path = path
        head = _Head(
            edgedecode_trace=FORMAT,
            pack=pack,
            free=sorted(scheduler.free),
            models=list(scheduler.models),
            heads=[list(group) for group in sorted(set(scheduler.heads.values()))],
            options=scheduler.options,
            experience=scheduler.experience.as_dict(),
        )
        self._stream: IO[bytes] | None = None
        try:
            self._stream = path.open("wb")
            self._write(head)
        except OSError as error:
            self.close()
            raise InputError(f"the trace {path} cannot be written: {error.strerror or error}") from None

    def begin(self, kind: str = "") -> int:
        rest = self._scheduler.begin(kind)
        self._record(_Call(rest=rest, kind=kind))
        return rest

    def plan(self, signals: Signals) -> Plan:
        plan = self._scheduler.plan(signals)
        self._record(_Call(signals=signals, plan=plan))
        return plan

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        self._scheduler.observe(cost, scores)
        self._record(_Call(cost=cost, scores=tuple(scores)))

    def close(self) -> None:
        """Close the file. Every line was flushed when it was written."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):  # closing retries the write that failed
                stream.close()

    def _record(self, call: _Call) -> None:
        try:
            self._write(call)
        except OSError as error:
            self.close()
            notice(f"the trace {self._path} ends here, it cannot be written: {error.strerror or error}")

    def _write(self, value: _Head | _Call) -> None:
        if self._stream is not None:
            self._stream.write(msgspec.json.encode(value) + b"\n")
            self._stream.flush()  # a trace is most useful for a run that crashes


class Replayed(NamedTuple):
    """One plan of a trace: the signals, the recorded plan, and the plan of a new scheduler for the same signals."""

    signals: Signals
    recorded: Plan
    plan: Plan


def replay(path: Path, *, pack: str | None = None) -> Iterator[Replayed]:
    """Repeat a trace's calls on a scheduler that starts with the recorded one's experience; yield each plan.

    pack: digest of the pack that the trace must have been recorded with; None: any. Raises InputError for a trace of
    another pack and, with the line's number, for an invalid line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"the trace {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"the trace {path} is not text: {error}") from None
    scheduler = _scheduler(path, lines[0] if lines else "", pack=pack)
    decoder = msgspec.json.Decoder(_Call)
    for number, line in enumerate(lines[1:], start=2):
        try:
            call = decoder.decode(line)
        except ValueError as error:
            raise InputError(f"line {number} of the trace {path} is not a call: {error}") from None
        if call.signals is not None and call.plan is not None:
            yield Replayed(call.signals, call.plan, scheduler.plan(call.signals))
        elif call.cost is not None:
            scheduler.observe(call.cost, call.scores)
        elif call.rest is not None:
            scheduler.begin(call.kind)
        else:
            raise InputError(f"line {number} of the trace {path} is not a call: it has no plan, cost or rest")


def _scheduler(path: Path, line: str, *, pack: str | None) -> Scheduler:
    try:
        head = msgspec.json.decode(line, type=_Head)
        if head.edgedecode_trace != FORMAT:
            raise InputError(f"the trace {path} has format {head.edgedecode_trace}, this version reads format {FORMAT}")
        experience = Experience.from_dict(head.experience)
    except InputError:  # it is a ValueError too, and its message is complete
        raise
    except ValueError as error:
        raise InputError(f"the first line of {path} is not the head of a trace: {error}") from None
    if pack is not None and head.pack != pack:
        raise InputError(f"the trace {path} was recorded with another pack: give that pack")
    return Scheduler(free=head.free, models=head.models, heads=head.heads, experience=experience, options=head.options)
