"""Runs work in a child process that may crash, hang or leak memory, and passes values back: both sides."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Any

_MARK = "edgedecode-child:"
"""Prefix of our lines on standard output, where native code prints too."""
_LAST_LINES = 3
_START = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # without the working folder, which is untrusted
    "from pkgutil import resolve_name; resolve_name(sys.argv[1])(*sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class ChildReply:
    """The values that a child passed back before it ended, and how it failed."""

    told: Sequence[Any] = ()
    """The values passed to `tell_parent`."""
    failure: str = ""
    """How the child failed: its last line on standard error, or a clause that begins with "it". Empty: it succeeded."""
    signal: str = ""
    """The name of the signal that killed it."""
    words: str = ""
    """Its last lines on standard error."""
    ended: bool = True
    """False: it did not start, or timed out; a retry may succeed."""


def interpreter() -> str | None:
    """Return the Python executable of this process, or None.

    The executable of a frozen application is the application itself; an embedded interpreter has none.
    """
    return None if getattr(sys, "frozen", False) else sys.executable or None


def child_command(function: str) -> list[str] | None:
    """Return the command that calls `module:name` with the arguments appended to it; None: no child can start."""
    executable = interpreter()
    return None if executable is None else [executable, "-c", _START, function]


def ask_child(
    command: Sequence[str],
    *words: str,
    seconds: float | None = None,
    given: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> ChildReply:
    """Run a command with `words` as further arguments, and return its reply.

    seconds: timeout. given: its standard input. environment: added to that of this process.
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
        return ChildReply(_values(error.stdout or b""), f"it did not answer within {seconds:g} s", ended=False)
    except OSError as error:
        return ChildReply(failure=f"it could not be started: {error.strerror or error}", ended=False)
    values, signal = _values(done.stdout), signal_name(done.returncode)
    if not done.returncode:
        return ChildReply(values)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    ending = " / ".join(lines[-_LAST_LINES:])
    if signal:
        return ChildReply(values, f"its native code died with {signal}", signal, ending)
    return ChildReply(values, lines[-1] if lines else f"it ended with exit code {done.returncode}", words=ending)


def tell_parent(value: object) -> None:
    """Pass a JSON value back to the parent; called in the child."""
    sys.stdout.write(f"{_MARK}{json.dumps(value)}\n")
    sys.stdout.flush()


def signal_name(code: int) -> str:
    """Return the name of the signal behind a process's exit code; empty if it was not killed by one."""
    if code >= 0:
        return ""
    return Signals(-code).name if -code in set(Signals) else f"signal {-code}"


def _values(output: bytes) -> list[Any]:
    lines = output.decode("utf-8", "replace").splitlines()
    return [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]
