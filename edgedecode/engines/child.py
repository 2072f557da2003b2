"""Asks a child process what may crash, hang, or leave memory behind in this one: both sides of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Any

__all__ = ["ChildReply", "ask_child", "child_command", "interpreter", "signal_name", "tell_parent"]

_MARK = "edgedecode-child:"
"""Begins each line of standard output that is ours: native code prints there too."""
_LAST_LINES = 3
_START = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # not the working folder, which may hold anything
    "from pkgutil import resolve_name; resolve_name(sys.argv[1])(*sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class ChildReply:
    """What a child told before it ended, and how it failed. `failure` is empty where it did not."""

    told: Sequence[Any] = ()
    """The values that it gave `tell_parent`."""
    failure: str = ""
    """How the child ended, as a clause that begins with "it"; its last line on standard error where it exited."""
    signal: str = ""
    """The name of the signal that ended it."""
    words: str = ""
    """Its last lines on standard error."""
    ended: bool = True
    """False: it was not started, or stopped because it took too long; another time it may do better."""


def interpreter() -> str | None:
    """Return the executable that runs this process; None where that is not a Python.

    A frozen application's executable is the application: it would start itself. An embedded interpreter has none.
    """
    return None if getattr(sys, "frozen", False) else sys.executable or None


def child_command(function: str) -> list[str] | None:
    """Return the command that calls a function, `module:name`, with the words after it; None: no child can start."""
    executable = interpreter()
    return None if executable is None else [executable, "-c", _START, function]


def ask_child(
    command: Sequence[str],
    *words: str,
    seconds: float | None = None,
    given: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> ChildReply:
    """Run a command with these words after it, and return what it told.

    seconds: how long it may take. given: its standard input. environment: added to this process's.
    """
    try:
        done = subprocess.run(
            [*command, *words],
            stdin=subprocess.DEVNULL if given is None else None,
            input=None if given is None else given.encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
            env=None if environment is None else os.environ | environment,
        )
    except subprocess.TimeoutExpired as error:
        return ChildReply(_told(error.stdout or b""), f"it did not answer within {seconds:g} s", ended=False)
    except OSError as error:
        return ChildReply(failure=f"it could not be started: {error.strerror or error}", ended=False)
    told, signal = _told(done.stdout), signal_name(done.returncode)
    if not done.returncode:
        return ChildReply(told)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    ending = " / ".join(lines[-_LAST_LINES:])
    if signal:
        return ChildReply(told, f"its native code died with {signal}", signal, ending)
    return ChildReply(told, lines[-1] if lines else f"it ended with exit code {done.returncode}", words=ending)


def tell_parent(value: object) -> None:
    """Tell the process that asked a value of JSON, as the child."""
    sys.stdout.write(f"{_MARK}{json.dumps(value)}\n")
    sys.stdout.flush()


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process with this exit code; empty where none did."""
    if code >= 0:
        return ""
    return Signals(-code).name if -code in set(Signals) else f"signal {-code}"


def _told(output: bytes) -> list[Any]:
    lines = output.decode("utf-8", "replace").splitlines()
    return [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]
