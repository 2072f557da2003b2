"""Tries the engine in a child process before this one loads it: a build for other processors dies at its first product.

The finding is kept in the user's cache for this wheel, library and processor, so that it is asked for once.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from edgedecode.cache import cache_folder, keep_json, kept_json
from edgedecode.engines.hardware import processor_facts
from edgedecode.engines.interpreter import interpreter
from edgedecode.schedule.checked_numbers import mapping

from ..llama_engine import INSTALL, REINSTALL, Engine, Loading
from .scratch import scratch_file
from .tiny_gguf import tiny_model

__all__ = ["Finding", "decode_tiny", "probe_engine"]

TIMEOUT_SECONDS = 60.0
REBUILD = f'CMAKE_ARGS="-DGGML_NATIVE=OFF" {REINSTALL}=='
LASTING = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGABRT", "SIGFPE")
"""Signals that the same build sends again; others (memory ran out, a user's stop) are not remembered."""
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # not the working folder, which may hold anything
    "from edgedecode.runtimes.llama.files.engine_probe import decode_tiny; decode_tiny(sys.argv[1])"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the engine runs here, or why not and what to do."""

    works: bool
    reason: str = ""


def probe_engine(version: str, *, python: Sequence[str] | None = None, timeout: float = TIMEOUT_SECONDS) -> Finding:
    """Return whether this wheel runs on this processor: the cached finding, else a child process's.

    Where no child can be started, as in a frozen application, it counts as working: who froze it chose the wheel.
    python: the command that decodes the model whose path follows (tests use another one).
    """
    path = _cache_path(version)
    known = _load(path)
    if known is not None:
        return known
    executable = interpreter()
    if python is None and executable is None:
        return Finding(True)
    finding, lasting = _ask_child(version, python or (str(executable), "-c", _CODE), timeout=timeout)
    if lasting and path is not None:
        keep_json(path, asdict(finding))
    return finding


def decode_tiny(path: str) -> None:
    """Load the model at `path` and run a pass of one row and one of several, as the child process does."""
    from edgedecode.decoding.model import ModelCard
    from edgedecode.gguf.header import read_header
    from edgedecode.memory import Budget
    from edgedecode.pack.manifest import ModelEntry

    from ..llama_model import LlamaModel

    engine, header = Engine(), read_header(Path(path))
    entry = ModelEntry(
        architecture=header.architecture,
        rows=header.rows,
        context=header.context,
        hidden_size=header.hidden_size,
        layers=header.layers,
        kv_heads=header.kv_heads,
        head_size=header.head_size,
        parameters=1,
        weights="",
        graphs={},
        bits=4,
        block_size=32,
        head_bits=8,
        license="",
        source="",
    )
    card = ModelCard(
        name="probe", rows=entry.rows, vocabulary_size=entry.rows, context=entry.context, kv_types=("float16",)
    )
    weights = engine.load(Path(path), Loading())
    model = LlamaModel(weights, entry=entry, header=header, card=card, budget=Budget(), leases=[])
    state = model.new_state(64)
    model.forward(range(20), state)
    model.forward([1], state)
    model.close()


def _ask_child(version: str, python: Sequence[str], *, timeout: float) -> tuple[Finding, bool]:
    """Return the finding, and whether it will be the same tomorrow."""
    with scratch_file("probe.gguf") as model:
        model.write_bytes(tiny_model())
        try:
            done = subprocess.run(
                [*python, str(model)],
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},
                capture_output=True,
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return Finding(False, f"its tiny test model took more than {timeout:g} s"), False
        except OSError as error:
            return Finding(False, f"it could not be tried: {error.strerror or error}"), False
    if done.returncode == 0:
        return Finding(True), True
    if done.returncode < 0:
        name = _signal_name(-done.returncode)
        return Finding(False, f"its native code died with {name}; rebuild it: {REBUILD}{version}"), name in LASTING
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    said = lines[-1].removeprefix("edgedecode.errors.RuntimeUnavailable: ") if lines else f"exit code {done.returncode}"
    return Finding(False, said if INSTALL in said or REINSTALL in said else f"{said} ({INSTALL})"), False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _cache_path(version: str) -> Path | None:
    folder = cache_folder("engines")
    if folder is None:
        return None
    facts = "\n".join([version, *_library(), *processor_facts()])
    return folder / f"llama-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.json"


def _library() -> list[str]:
    """Return what changes when the wheel is built again: its libraries' sizes and times. Imports nothing of it."""
    spec = find_spec("llama_cpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [path for folder in folders for path in sorted((Path(folder) / "lib").glob("*")) if path.is_file()]
    return [f"{path}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files]


def _load(path: Path | None) -> Finding | None:
    try:
        value = mapping(kept_json(path)) if path is not None else {}
        return Finding(works=bool(value["works"]), reason=str(value["reason"])) if value else None
    except (OSError, ValueError, KeyError):
        return None
