"""Asks a runtime for its devices in a child process: native code may crash, and must not take the program along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from edgedecode.engines.child import ask_child, child_command, tell_parent
from edgedecode.engines.interface import Device

__all__ = ["answer", "probe"]

TIMEOUT_SECONDS = 120.0


def probe(runtime: str, *, timeout: float = TIMEOUT_SECONDS, python: Sequence[str] | None = None) -> list[Device]:
    """Return the runtime's devices; an engine that is missing, crashes or hangs is one unavailable device saying so.

    A frozen application can start no child and asks in this process. python: the command that answers for a runtime
    (tests use another one).
    """
    command = python or child_command(f"{__name__}:answer")
    if command is None:
        return _devices(runtime)
    reply = ask_child(command, runtime, seconds=timeout)
    for devices in reply.told:
        return [Device(**device) for device in devices]
    advice = ", which does not suit this machine: rebuild or reinstall the engine" if reply.signal else ""
    return [_unavailable(runtime, (reply.failure or "it gave no answer") + advice)]


def answer(runtime: str) -> None:
    """Tell a runtime's devices, as the child process does."""
    tell_parent([asdict(device) for device in _devices(runtime)])


def _devices(runtime: str) -> list[Device]:
    from edgedecode import EdgeDecodeError
    from edgedecode.engines.registry import find_runtime

    try:
        return list(find_runtime(runtime).devices())
    except EdgeDecodeError as error:
        return [_unavailable(runtime, " ".join(str(error).split()))]


def _unavailable(runtime: str, reason: str) -> Device:
    return Device(runtime=runtime, provider="-", description="", available=False, reason=reason)
