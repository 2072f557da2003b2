"""Tells when the machine, or the container this process is in, runs short of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from .limit import group_files, read_limit, system_lines

__all__ = ["FreeMemory", "MemoryPressure", "free_memory"]

SHORT, ENOUGH = 0.03, 0.06
"""Memory is short below the first share of all there is, and no longer short above the second."""
INTERVAL_S = 1.0
"""Between two looks at the system: one takes some 0.1 ms."""


class FreeMemory(NamedTuple):
    """What programs may still take, and all there is, in bytes."""

    nbytes: int
    total: int

    @property
    def share(self) -> float:
        return self.nbytes / self.total


def free_memory(root: Path = Path("/")) -> FreeMemory | None:
    """Return what is left on the machine, or in a control group above this process that has less of its limit left.

    Files' pages count as free: the system takes them back. None where the system does not tell; only Linux does.
    """
    found = [free for free in (_of_machine(root), *map(_of_group, group_files(root))) if free is not None]
    return min(found, key=lambda free: free.share, default=None)


class MemoryPressure:
    """Remembers whether memory is short, and looks again once a second. Not for several threads at a time."""

    def __init__(
        self, *, free: Callable[[], FreeMemory | None] = free_memory, clock: Callable[[], float] = monotonic
    ) -> None:
        self._free, self._clock = free, clock
        self._next = 0.0
        self._short = False

    def looked(self) -> bool:
        """Look where it is time to; tell whether that was so."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + INTERVAL_S
        free = self._free()
        if free is not None:
            self._short = free.share < (ENOUGH if self._short else SHORT)
        return True

    @property
    def short(self) -> bool:
        """Whether memory was short at the last look."""
        return self._short


def _of_machine(root: Path) -> FreeMemory | None:
    told = dict(line.split()[:2] for line in system_lines(root / "proc/meminfo") if line.endswith(" kB"))
    try:
        return _free(1024 * int(told["MemAvailable:"]), 1024 * int(told["MemTotal:"]))
    except (KeyError, ValueError):
        return None


def _of_group(file: Path) -> FreeMemory | None:
    """Return what is left of the limit that a group's file gives."""
    limit = read_limit(file)
    if limit is None:
        return None
    used_name, of_files = _USED[file.name]
    used = "".join(system_lines(file.with_name(used_name))[:1])
    told = dict(line.split()[:2] for line in system_lines(file.with_name("memory.stat")) if line.count(" ") == 1)
    try:
        held = int(used) - sum(int(told[name]) for name in of_files)
    except (KeyError, ValueError):
        return None
    return _free(limit - held, limit)


_USED = {  # by the name of the limit's file: that of what is used, and the lines of memory.stat that are files' pages
    "memory.max": ("memory.current", ("inactive_file", "active_file")),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}


def _free(nbytes: int, total: int) -> FreeMemory | None:
    return FreeMemory(min(max(nbytes, 0), total), total) if total > 0 else None
