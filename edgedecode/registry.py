"""Finds runtimes, drafters and commands by name among the installed entry points; loads only what is asked for."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from edgedecode.errors import InputError, RuntimeUnavailable

if TYPE_CHECKING:  # the command line imports this module before anything heavy
    from edgedecode.protocols import DrafterSource, Runtime

__all__ = ["COMMANDS", "DRAFTERS", "RUNTIMES", "drafter_names", "find_drafter", "find_runtime", "installed"]

RUNTIMES = "edgedecode.runtimes"
DRAFTERS = "edgedecode.drafters"
COMMANDS = "edgedecode.commands"


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted; nothing is imported."""
    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


def find_runtime(name: str) -> Runtime:
    """Load and make the runtime of this name. Raises InputError (unknown), RuntimeUnavailable (cannot be imported)."""
    entry = _find(RUNTIMES, name, noun="runtime")
    try:
        factory = entry.load()
    except ImportError as error:
        raise RuntimeUnavailable(
            f"the runtime {name!r} needs {error.name or error}, which is not installed: "
            f"pip install 'edgedecode[{name}]'"
        ) from error
    return cast("Runtime", factory())


def find_drafter(name: str) -> DrafterSource:
    """Load and make the drafter source of this name. Raises InputError naming what is there."""
    return cast("DrafterSource", _find(DRAFTERS, name, noun="drafter").load()())


def drafter_names() -> list[str]:
    """Return the names of the installed drafters."""
    return list(installed(DRAFTERS))


def _find(group: str, name: str, *, noun: str) -> EntryPoint:
    entries = installed(group)
    if name not in entries:
        raise InputError(f"there is no {noun} {name!r}; installed: {', '.join(entries) or 'none'}")
    return entries[name]
