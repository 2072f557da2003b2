"""Asks a runtime for its devices in a child process: native code may crash, and must not take the program along."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict

from edgedecode.engines.interface import Device
from edgedecode.engines.interpreter import interpreter

__all__ = ["answer", "probe"]

TIMEOUT_SECONDS = 120.0
_MARK = "edgedecode-devices:"
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # not the working folder, which may hold anything
    "from edgedecode.apps.devices.device_probe import answer; answer(sys.argv[1])"
)


def probe(runtime: str, *, timeout: float = TIMEOUT_SECONDS, python: Sequence[str] | None = None) -> list[Device]:
    """Return the runtime's devices; an engine that is missing, crashes or hangs is one unavailable device saying so.

    A frozen application can start no child and asks in this process. python: the command that runs a line of Python
    given after it (tests use another one).
    """
    executable = interpreter()
    if python is None and executable is None:
        return _devices(runtime)
    command = [*(python or (str(executable), "-c", _CODE)), runtime]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return [_unavailable(runtime, f"did not answer within {timeout:g} s")]
    except OSError as error:
        return [_unavailable(runtime, f"could not be probed: {error.strerror or error}")]
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            return [Device(**item) for item in json.loads(line.removeprefix(_MARK))]
    return [_unavailable(runtime, _why(done))]


def answer(runtime: str) -> None:
    """Print a runtime's devices, as the child process does."""
    print(_MARK + json.dumps([asdict(device) for device in _devices(runtime)]), flush=True)


def _devices(runtime: str) -> list[Device]:
    from edgedecode import EdgeDecodeError
    from edgedecode.engines.registry import find_runtime

    try:
        return list(find_runtime(runtime).devices())
    except EdgeDecodeError as error:
        return [_unavailable(runtime, " ".join(str(error).split()))]


def _unavailable(runtime: str, reason: str) -> Device:
    return Device(runtime=runtime, provider="-", description="", available=False, reason=reason)


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        try:
            name = signal.Signals(-done.returncode).name
        except ValueError:
            name = f"signal {-done.returncode}"
        return f"crashed with {name}: the engine's native code does not suit this machine, rebuild or reinstall it"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"ended with exit code {done.returncode} and no answer"
