"""Measures engines on a pack, each in a child process, and caches the results.

A child can use the full budget, leaves no memory behind, and isolates crashes of native code. A result is keyed by the
weights, engines, threads and processor, not by the budget.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import edgedecode
from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.pack.manifest import Manifest
from edgedecode.user_notices import notice

from .child import ask_child, child_command
from .engine_choice import SLACK_NBYTES, Speeds, room
from .hardware import cores, processor_facts

FORMAT = 3
TIMEOUT_SECONDS = 300.0
REFUSALS_LAST = timedelta(days=1)
"""Time after which an engine that refused or did not fit is asked again: the cause may be gone, such as a full disk."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """How an engine is opened on a pack, and with what budget.

    memory: the budget in bytes, None: no limit. context: a session's positions, None: the default. held: bytes of the
    budget that this process already uses before it loads an engine.
    """

    provider: str = "cpu"
    threads: int | None = None
    kv_type: str | None = None
    memory: int | None = None
    context: int | None = None
    held: int = 0
    loading: tuple[str, ...] = ()
    """Any of `NO_MMAP`, `NO_REPACK` and `ADAPTERS`."""

    @property
    def free(self) -> int | None:
        """Bytes of the budget left for an engine and its session; None: no limit."""
        return None if self.memory is None else self.memory - self.held


def finding_path(manifest: Manifest, request: EngineRequest, *, versions: Mapping[str, str]) -> Path | None:
    """Return the cache file for the speeds of these engines on this pack's target; None: no cache folder."""
    folder = cache_folder("engines")
    if folder is None:
        return None
    entry = manifest.models["target"]
    names = [entry.weights, entry.gguf, entry.gguf_plan, *sorted(graph.file for graph in entry.graphs.values())]
    known = {name: file.sha256 for name, file in manifest.files.items()}
    known |= {name: file.sha256 for name, file in manifest.outside.items()}
    digests = [known[name] for name in names if name in known]
    engines = [f"{name} {version}" for name, version in sorted(versions.items())]
    settings = [repr(value) for value in asdict(replace(request, memory=None, context=None, held=0)).values()]
    facts = [str(FORMAT), edgedecode.__version__, *digests, *engines, *settings, str(cores()), *processor_facts()]
    return folder / f"speed-{facts_key(*facts)}.json"


def load_speeds(path: Path | None) -> Speeds:
    """Return the cached speeds without outdated refusals; empty if the file is missing or damaged."""
    try:
        found = kept_json(path, Speeds) if path is not None else Speeds({})
        age = datetime.now(UTC) - datetime.fromisoformat(found.taken)
    except (OSError, ValueError, TypeError, OverflowError):
        return Speeds({})
    return replace(found, refused={}, least={}) if age > REFUSALS_LAST else found


def store_speeds(path: Path, speeds: Speeds) -> None:
    """Write speeds to the cache."""
    keep_json(path, asdict(speeds))


def measure_speeds(
    root: Path,
    names: Sequence[str],
    request: EngineRequest,
    *,
    known: Speeds | None = None,
    python: Sequence[str] | None = None,
) -> Speeds:
    """Measure these engines, each in a child process, and return `known` with the results added.

    An engine whose speed is known is only asked for the memory of such a session. Where no child can be started, as in
    a frozen application, nothing is measured. python: the child's command, called with the order as its only argument
    (tests pass their own).
    """
    speeds = known or Speeds({})
    command = python or child_command("edgedecode.engines.speed_child:main")
    if command is None:
        return speeds
    timed = set(names) - set(speeds.seconds)
    what = "the engines on this pack (once, some seconds)" if timed else "the memory of such a session (some seconds)"
    notice(f"measuring {what}")
    for name in names:
        answer = _ask_child(root, name, request, timed=name not in speeds.seconds, python=command)
        speeds = _with(speeds, name, request, answer)
    return replace(speeds, taken=datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(slots=True)
class _Answer:
    """A child's results for its engine. reason: why it measured no speed, or how it crashed."""

    seconds: float | None = None
    needs: int | None = None
    least: int = 0
    """The least free bytes it needs, if it did not fit."""
    runs: int | None = None
    """Bytes that the smallest session takes, if it did not fit."""
    reason: str = ""


def _with(speeds: Speeds, name: str, request: EngineRequest, answer: _Answer) -> Speeds:
    """Return the speeds with a child's results for an engine added."""
    key = room(name, request.context)
    refused = {other: reason for other, reason in speeds.refused.items() if other != name}
    least = answer.least
    if request.free is not None and not least and answer.needs is not None:
        least = answer.needs + SLACK_NBYTES  # a fit with less slack than this is not measured again
    if request.free is not None and least > request.free:
        speeds = replace(speeds, least={**speeds.least, key: least})
    if answer.runs is not None:
        speeds = replace(speeds, runs={**speeds.runs, key: answer.runs})
    if answer.least:
        return replace(speeds, refused=refused)
    seconds = speeds.seconds.get(name) if answer.seconds is None else answer.seconds
    if seconds is None or answer.reason:
        others = {other: number for other, number in speeds.seconds.items() if other != name}
        return replace(speeds, seconds=others, refused={**refused, name: answer.reason or "it reported no time"})
    return replace(
        speeds,
        seconds={**speeds.seconds, name: seconds},
        refused=refused,
        needs={**speeds.needs, key: answer.needs} if answer.needs is not None else speeds.needs,
    )


def _ask_child(root: Path, name: str, request: EngineRequest, *, timed: bool, python: Sequence[str]) -> _Answer:
    order = json.dumps({"pack": str(root.absolute()), "engine": name, "timed": timed, **asdict(request)})
    answer, reply = _Answer(), ask_child(python, order, seconds=TIMEOUT_SECONDS)
    for event in reply.told:
        _apply(event, answer)
    answer.reason = reply.failure or answer.reason
    return answer


def _apply(event: Mapping[str, object], answer: _Answer) -> None:
    """Store one event of a child in its answer."""
    match event:
        case {"notice": text}:
            notice(str(text))
        case {"seconds": seconds}:
            answer.seconds = float(str(seconds))
        case {"needs": nbytes}:
            answer.needs = int(str(nbytes))
        case {"runs": nbytes}:
            answer.runs = int(str(nbytes))
        case {"least": least}:
            answer.least = int(str(least))
        case {"refused": reason}:
            answer.reason = str(reason)
