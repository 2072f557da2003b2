"""Which kernels run here: as `EDGEDECODE_KERNELS` asks, and only a library that has run in a child process before.

The variable is auto (the best this processor has), an instruction set by name, or engine. The child is started once for
each build and processor: native code that dies must not take a chat with it.
"""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from edgedecode.cache import cache_folder, keep_json, kept_json
from edgedecode.engines.hardware import processor_facts
from edgedecode.engines.interpreter import interpreter
from edgedecode.errors import InputError, RuntimeUnavailable
from edgedecode.schedule.checked_numbers import mapping
from edgedecode.user_notices import notice

from .library import INSTRUCTION_SETS, LIBRARY, KernelLibrary
from .self_check import run_once

__all__ = ["CHOICES", "VARIABLE", "kernels_line", "load_kernels", "tried"]

VARIABLE = "EDGEDECODE_KERNELS"
CHOICES = ("auto", *INSTRUCTION_SETS, "engine")
FOLDER = "kernels"
TRY_SECONDS = 60
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # not the working folder, which may hold anything
    "from edgedecode.runtimes.onnx.kernels.library import KernelLibrary; "
    "from edgedecode.runtimes.onnx.kernels.self_check import run_once; "
    "from pathlib import Path; run_once(KernelLibrary(Path(sys.argv[1]))); print('sound')"
)


def load_kernels() -> KernelLibrary | None:
    """Return the library as `EDGEDECODE_KERNELS` asks for it; None: the engine's kernels run.

    Raises InputError for a choice that does not exist or that this processor does not have.
    """
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice not in CHOICES:
        raise InputError(f"{VARIABLE}={choice}: give one of {', '.join(CHOICES)}")
    if choice == "engine":
        return None
    library, reason = tried()
    if library is None:
        if choice != "auto":
            raise InputError(f"{VARIABLE}={choice}: {reason}")
        _say_once(f"ONNX Runtime's own kernels run: {reason}")
        return None
    try:
        library.choose(choice)
    except InputError as error:
        raise InputError(f"{VARIABLE}={choice}: {error}") from None
    return library


def kernels_line() -> str:
    """Return which kernels run here and why, for people."""
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice == "engine":
        return f"ONNX Runtime's own kernels: {VARIABLE}=engine"
    library, reason = tried()
    if library is None:
        return f"ONNX Runtime's own kernels: {reason}"
    if choice != "auto" and choice not in library.instruction_sets:
        return (
            f"{VARIABLE}={choice} cannot be had here: this processor or build has {', '.join(library.instruction_sets)}"
        )
    name = library.instruction_sets[0] if choice == "auto" else choice
    return f"edgedecode's kernels: {name} (of {', '.join(library.instruction_sets)})"


@lru_cache(maxsize=1)
def tried() -> tuple[KernelLibrary | None, str]:
    """Return the library, or None and the reason; it has run in a child process without dying."""
    if not LIBRARY.is_file():
        return None, (
            "edgedecode was installed without its kernels (no C++ compiler, or EDGEDECODE_BUILD_KERNELS=0): "
            "install a compiler and reinstall"
        )
    try:
        reason = _reason_against(LIBRARY, engine=_engine())
        return (None, reason) if reason else (KernelLibrary(LIBRARY), "")
    except RuntimeUnavailable as error:
        return None, str(error)


def _engine() -> str:
    """Return the file of the engine as a version: several distributions bring it."""
    found = find_spec("onnxruntime")
    return "" if found is None or found.origin is None else f"{found.origin} {Path(found.origin).stat().st_mtime_ns}"


@lru_cache(maxsize=8)
def _say_once(text: str) -> None:
    notice(text)


def _reason_against(path: Path, *, engine: str) -> str:
    """Return why this build cannot run on this processor with this engine; empty: it can. Kept in the user's cache."""
    stamp = path.stat()
    facts = [str(path), str(stamp.st_size), str(stamp.st_mtime_ns), engine, *processor_facts()]
    folder = cache_folder(FOLDER)
    kept = None if folder is None else folder / f"{sha256(chr(10).join(facts).encode()).hexdigest()[:24]}.json"
    try:
        if kept is not None:
            return str(mapping(kept_json(kept))["reason"])
    except (OSError, ValueError, KeyError):
        pass  # tried again
    try:
        reason = _try_in_child(path)
    except (OSError, TypeError, subprocess.TimeoutExpired) as error:  # no finding: tried again next time
        return f"the library {path.name} could not be tried ({error})"
    if kept is not None:
        keep_json(kept, {"reason": reason})
    return reason


def _try_in_child(path: Path) -> str:
    executable = interpreter()
    if executable is None:
        return _try_here(path)
    child = subprocess.run(
        [executable, "-c", _CODE, str(path)],
        capture_output=True,
        text=True,
        timeout=TRY_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if child.returncode == 0 and child.stdout.strip().endswith("sound"):
        return ""
    last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    died = f"signal {-child.returncode}" if child.returncode < 0 else last
    return f"the library {path.name} does not run here ({died}): reinstall edgedecode on this machine"


def _try_here(path: Path) -> str:
    """Try it in this process, for want of another: who froze the application chose the build."""
    try:
        library = KernelLibrary(path)
        run_once(library)
        library.choose("auto")  # not the one that was tried last
    except Exception as error:  # the engine's own kinds too
        return f"the library {path.name} does not run here ({error}): reinstall edgedecode on this machine"
    return ""
