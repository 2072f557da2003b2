"""Detects when the machine, or this process's container, runs short of memory."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from .limit import group_files, read_limit, system_lines

SHORT, ENOUGH = 0.03, 0.06
"""Memory becomes short below the first share of the total, and stops being short above the second."""
INTERVAL_S = 1.0
"""Time between two reads of the system's files; a read takes some 0.1 ms."""


class FreeMemory(NamedTuple):
    """Available and total memory in bytes."""

    nbytes: int
    total: int

    @property
    def share(self) -> float:
        return self.nbytes / self.total


def free_memory(root: Path = Path("/")) -> FreeMemory | None:
    """Return the free memory of the machine, or of the control group above this process with the smallest free share.

    Page cache counts as free, because the kernel reclaims it. None if the system does not report it; only Linux does.
    """
    found = [free for free in (_of_machine(root), *map(_of_group, group_files(root))) if free is not None]
    return min(found, key=lambda free: free.share, default=None)


class MemoryPressure:
    """Whether memory is short, checked at most once a second. Not thread-safe."""

    def __init__(
        self, *, free: Callable[[], FreeMemory | None] = free_memory, clock: Callable[[], float] = monotonic
    ) -> None:
        self._free, self._clock = free, clock
        self._next = 0.0
        self._short = False

    def looked(self) -> bool:
        """Check the system if a check is due. Return whether it was."""
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
        """Whether memory was short at the last check."""
        return self._short


def _of_machine(root: Path) -> FreeMemory | None:
    fields = dict(line.split()[:2] for line in system_lines(root / "proc/meminfo") if line.endswith(" kB"))
    try:
        return _free(1024 * int(fields["MemAvailable:"]), 1024 * int(fields["MemTotal:"]))
    except (KeyError, ValueError):
        return None


def _of_group(file: Path) -> FreeMemory | None:
    """Return the free memory of a control group, given its limit file."""
    limit = read_limit(file)
    if limit is None:
        return None
    used_name, cache_fields = _USED[file.name]
    used = "".join(system_lines(file.with_name(used_name))[:1])
    stat = dict(line.split()[:2] for line in system_lines(file.with_name("memory.stat")) if line.count(" ") == 1)
    try:
        held = int(used) - sum(int(stat[name]) for name in cache_fields)
    except (KeyError, ValueError):
        return None
    return _free(limit - held, limit)


_USED = {  # name of the limit file: the name of the usage file, and the fields of memory.stat that are page cache
    "memory.max": ("memory.current", ("inactive_file", "active_file")),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}


def _free(nbytes: int, total: int) -> FreeMemory | None:
    return FreeMemory(min(max(nbytes, 0), total), total) if total > 0 else None
