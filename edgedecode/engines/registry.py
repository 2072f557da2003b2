"""Finds runtimes, drafters and commands by name among the installed entry points; loads only the requested one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from edgedecode.errors import CapabilityError, InputError, RuntimeUnavailable
from edgedecode.user_notices import notice

if TYPE_CHECKING:  # the command line imports this module first and must start fast
    from edgedecode.drafters.lookup import Lookup
    from edgedecode.drafters.source import DrafterSource

    from .engine_factory import Maker
    from .interface import Runtime
    from .target_server import TargetFactory

RUNTIMES = "edgedecode.runtimes"
DRAFTERS = "edgedecode.drafters"
NAMED_DRAFTERS = "edgedecode.named_drafters"
"""Drafters that are only used where an option names them, and are loaded then."""
LOOKUPS = "edgedecode.lookups"
"""Drafters that are plain functions (`drafters/lookup.py`)."""
COMMANDS = "edgedecode.commands"
MAKERS = "edgedecode.makers"
PROVIDERS = "edgedecode.providers"
"""Execution providers of ONNX Runtime."""
TARGETS = "edgedecode.targets"
"""How to reach a target that runs on a server."""


@cache
def every_entry_point() -> Sequence[EntryPoint]:
    """Return the entry points of all our groups. Cached, because each query scans the metadata of all packages."""
    found = entry_points()
    groups = (RUNTIMES, PROVIDERS, DRAFTERS, NAMED_DRAFTERS, LOOKUPS, COMMANDS, MAKERS, TARGETS)
    return [entry for group in groups for entry in found.select(group=group)]


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted, without importing them."""
    entries = (entry for entry in every_entry_point() if entry.group == group)
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}


def find_runtime(name: str) -> Runtime:
    """Create the runtime of this name. Raises InputError (unknown name) or RuntimeUnavailable (import fails)."""
    return find_factory(name)()


def find_factory(name: str) -> Callable[[], Runtime]:
    """Load the callable that creates the runtime, often a `RuntimeFactory`. Raises like `find_runtime`."""
    entry = _find((RUNTIMES,), name, noun="runtime")
    try:
        return cast("Callable[[], Runtime]", entry.load())
    except ImportError as error:
        raise RuntimeUnavailable(
            f"the runtime {name!r} needs {error.name or error}, which is not installed: "
            f"pip install 'edgedecode[{name}]'"
        ) from error


def find_maker(name: str) -> Maker:
    """Create the builder of files of this format. Raises InputError or RuntimeUnavailable."""
    entry = _find((MAKERS,), name, noun="maker of files")
    try:
        return cast("Maker", entry.load()())
    except ImportError as error:
        raise RuntimeUnavailable(f"{name} files are made with {error.name or error}, which is not installed") from error


def find_targets() -> TargetFactory:
    """Return what opens targets on servers. Raises InputError if nothing does."""
    return cast("TargetFactory", _find((TARGETS,), "remote", noun="target on a server").load())


def find_drafter(name: str) -> DrafterSource:
    """Create the drafter source of this name. Raises InputError (unknown name) or CapabilityError (load fails)."""
    from edgedecode.drafters.source import DrafterSource

    entry = _find((LOOKUPS, NAMED_DRAFTERS, DRAFTERS), name, noun="drafter")
    try:
        found = entry.load()
        source = _lookup_source(name, found) if entry.group == LOOKUPS else found()
    except Exception as error:  # another package's code
        raise CapabilityError(f"the drafter {name!r} cannot be loaded ({error}): install its package again") from error
    if not isinstance(source, DrafterSource):
        raise CapabilityError(f"the drafter {name!r} cannot be loaded: {entry.value} returns no DrafterSource")
    return source


def _lookup_source(name: str, function: Lookup) -> DrafterSource:
    from edgedecode.drafters.lookup import LookupSource

    return LookupSource(name, function)


def drafter_names() -> list[str]:
    """Return the names of the installed drafters."""
    return sorted({*_usual_drafters(), *installed(NAMED_DRAFTERS)})


def drafter_sources() -> dict[str, DrafterSource]:
    """Create the drafters' sources by name, sorted, without `NAMED_DRAFTERS`.

    Notify the user of those that cannot be loaded.
    """
    found: dict[str, DrafterSource] = {}
    for name in sorted(_usual_drafters()):
        try:
            found[name] = find_drafter(name)
        except CapabilityError as error:
            notice(f"{error.reason}; answers do without it")
    return found


def _usual_drafters() -> set[str]:
    return {*installed(DRAFTERS), *installed(LOOKUPS)}


def _find(groups: Sequence[str], name: str, *, noun: str) -> EntryPoint:
    entries = {each: entry for group in groups for each, entry in installed(group).items()}
    if name not in entries:
        raise InputError(f"there is no {noun} {name!r}; installed: {', '.join(sorted(entries)) or 'none'}")
    return entries[name]
