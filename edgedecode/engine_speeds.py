"""Measures engines on a pack in a child process, and keeps what was found. Knows no engine by name.

The child opens one engine after the other, in turns, so that memory does not pile up there and none at all here, and so
that native code which crashes takes only the child along. A finding holds for these weights, engines, threads and this
processor.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from signal import Signals
from statistics import median

import edgedecode
from edgedecode.engine_choice import Speeds
from edgedecode.folders import cache_folder, keep_json
from edgedecode.manifest import Manifest
from edgedecode.notices import notice
from edgedecode.processor import cores, processor_facts

__all__ = ["MARK", "EngineRequest", "finding_path", "load_speeds", "measure_speeds", "store_speeds"]

FORMAT = 1
MARK = "edgedecode-speed:"
TIMEOUT_SECONDS = 300.0
REFUSALS_LAST = timedelta(days=1)
"""An engine that refused is asked again after this: the disk may have been full."""
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # not the working folder, which may hold anything
    "from edgedecode.engine_process import main; main(sys.argv[1])"
)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an engine is opened with besides the pack; `memory` is the budget in bytes, None: no limit."""

    provider: str = "cpu"
    threads: int | None = None
    kv_type: str | None = None
    memory: int | None = None


def finding_path(manifest: Manifest, request: EngineRequest, *, versions: Mapping[str, str]) -> Path | None:
    """Return where the speeds of these engines on this pack's target are kept; None: nothing can be kept."""
    folder = cache_folder("engines")
    if folder is None:
        return None
    entry = manifest.models["target"]
    names = [entry.weights, entry.gguf, entry.gguf_plan, *sorted(graph.file for graph in entry.graphs.values())]
    known = {name: file.sha256 for name, file in manifest.files.items()}
    known |= {name: file.sha256 for name, file in manifest.outside.items()}
    digests = [known[name] for name in names if name in known]
    engines = [f"{name} {version}" for name, version in sorted(versions.items())]
    settings = [repr(value) for value in asdict(request).values()]
    facts = [str(FORMAT), edgedecode.__version__, *digests, *engines, *settings, str(cores()), *processor_facts()]
    return folder / f"speed-{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:24]}.json"


def load_speeds(path: Path | None) -> Speeds | None:
    """Return what was found; None for nothing, for damage, and for refusals of some time ago."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
        if not value:
            return None
        seconds = {str(name): float(number) for name, number in value["seconds"].items()}
        refused = {str(name): str(reason) for name, reason in value["refused"].items()}
        age = datetime.now(timezone.utc) - datetime.fromisoformat(value["taken"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not all(0 < number < float("inf") for number in seconds.values()) or (refused and age > REFUSALS_LAST):
        return None
    return Speeds(seconds, refused, str(value["taken"]))


def store_speeds(path: Path, speeds: Speeds) -> None:
    """Keep a finding."""
    keep_json(path, asdict(speeds))


def measure_speeds(
    root: Path, names: Sequence[str], request: EngineRequest, *, python: Sequence[str] | None = None
) -> Speeds:
    """Measure these engines in a child process; one that crashes it is left out and the others are measured again.

    python: the command that takes an order as its one argument (tests use another one).
    """
    refused: dict[str, str] = {}
    while True:
        asked = [name for name in names if name not in refused]
        found = _ask_child(root, asked, request, python=python or (sys.executable, "-c", _CODE))
        refused |= found.refused
        if found.crashed is None or not asked:
            break
        refused[found.crashed or asked[0]] = found.reason
    taken = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Speeds({name: median(times) for name, times in found.times.items() if name not in refused}, refused, taken)


@dataclass(slots=True)
class _Answer:
    """What a child printed: times by engine, refusals, and the engine in whose turn it died (None: it did not)."""

    times: dict[str, list[float]]
    refused: dict[str, str]
    crashed: str | None = None
    reason: str = ""


def _ask_child(root: Path, names: Sequence[str], request: EngineRequest, *, python: Sequence[str]) -> _Answer:
    answer = _Answer({}, {})
    if not names:
        return answer
    order = json.dumps({"pack": str(root.absolute()), "engines": list(names), **asdict(request)})
    try:
        done = subprocess.run(
            [*python, order], capture_output=True, timeout=TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        printed, reason = done.stdout, _ending(done.returncode) if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        printed, reason = error.stdout or b"", f"it took more than {TIMEOUT_SECONDS:g} s"
    except OSError as error:
        printed, reason = b"", f"it could not be measured: {error.strerror or error}"
    turn = ""
    for line in printed.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            turn = _take(json.loads(line.removeprefix(MARK)), answer, turn=turn)
    if reason:
        answer.crashed, answer.reason = turn or names[0], reason
    return answer


def _take(event: Mapping[str, object], answer: _Answer, *, turn: str) -> str:
    """Take in one event of a child; return the engine whose turn it is then."""
    name = str(event.get("engine", turn))
    match event:
        case {"notice": text}:
            notice(str(text))
        case {"seconds": seconds}:
            answer.times.setdefault(name, []).append(float(str(seconds)))
        case {"refused": reason}:
            answer.refused[name] = str(reason)
    return name


def _ending(code: int) -> str:
    try:
        return f"its native code died with {Signals(-code).name}" if code < 0 else f"its process ended with {code}"
    except ValueError:
        return f"its process was ended by signal {-code}"
