"""What a process holds of the machine's memory, by the system's own figures. Other systems than Linux need psutil."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NamedTuple

__all__ = [
    "Counters",
    "ProcessMemory",
    "high_water_nbytes",
    "highest",
    "memory_now",
    "memory_of",
    "peak_nbytes",
    "release_pages",
    "resident_nbytes",
]


class ProcessMemory(NamedTuple):
    """What a process holds, in bytes; None: the system does not tell.

    resident: pages it shares with others count whole, so that this is what it would hold alone. proportional: shared
    pages count in parts, one for each process that has them. anonymous: what no file holds, and so only swap can take;
    by psutil, what no other process has.
    """

    resident: int
    proportional: int | None = None
    anonymous: int | None = None


def memory_now() -> ProcessMemory | None:
    """Return what this process holds; None where nothing tells."""
    return memory_of(os.getpid())


def memory_of(pid: int) -> ProcessMemory | None:
    """Return what a process holds; None where it has ended, or nothing tells.

    On Linux the kernel looks at each of its pages: 2 ms for 150 MB of them were measured.
    """
    if sys.platform != "linux":
        return _by_psutil(pid, full=True)
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            told = dict(line.split()[:2] for line in lines if line.endswith(" kB\n"))
        return ProcessMemory(*(int(told[name]) * 1024 for name in ("Rss:", "Pss:", "Anonymous:")))
    except (OSError, KeyError, ValueError):
        return None


class Counters:
    """What the system counts of a process: as `memory_of`, but for proportional pages, as fast for any size.

    Some versions of Linux count roughly: a tenth of a megabyte may be missing for each processor.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._page = pid, os.sysconf("SC_PAGE_SIZE") if sys.platform == "linux" else 0
        self._file = -1
        if self._page:
            with suppress(OSError):
                self._file = os.open(f"/proc/{pid}/statm", os.O_RDONLY)  # of this very process, whoever gets its number

    def read(self) -> ProcessMemory | None:
        """Return what the process holds now; None where it has ended, or nothing tells."""
        if not self._page:
            return _by_psutil(self._pid, full=False)
        try:
            resident, shared = (int(pages) * self._page for pages in os.pread(self._file, 128, 0).split()[1:3])
        except (OSError, ValueError):
            return None
        return ProcessMemory(resident, None, resident - shared) if resident else None  # none: ended, and not reaped


def highest(one: ProcessMemory, other: ProcessMemory) -> ProcessMemory:
    """Return the larger figure of each kind, of those that are known."""
    known = [[each for each in pair if each is not None] for pair in zip(one, other, strict=True)]
    resident, proportional, anonymous = (max(pair, default=None) for pair in known)
    assert resident is not None
    return ProcessMemory(resident, proportional, anonymous)


def resident_nbytes() -> int | None:
    """Return what this process alone would hold of memory, in bytes as `peak_nbytes`; None where nothing tells."""
    now = memory_now()
    return None if now is None else now.resident


def release_pages() -> None:
    """Let the C library give the system what it holds and nothing uses, where it can: glibc keeps it otherwise."""
    import ctypes

    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def peak_nbytes() -> int | None:
    """Return the largest resident size this process ever had, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    # Not getrusage first: its peak survives exec, so that a child of a large process would report its parent's.
    if (peak := high_water_nbytes(os.getpid())) is not None:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def high_water_nbytes(pid: int) -> int | None:
    """Return the largest resident size that a process ever had, as Linux counts it; None elsewhere."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        return None


def _by_psutil(pid: int, *, full: bool) -> ProcessMemory | None:
    """Ask psutil, where it is installed. What no other process has it tells by looking at every page, or not at all."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        resident = int(process.memory_info().rss)
        try:
            return ProcessMemory(resident, None, int(process.memory_full_info().uss) if full else None)
        except psutil.AccessDenied:  # macOS: of other processes the superuser alone
            return ProcessMemory(resident)
    except psutil.Error:
        return None
