"""What this process holds of the machine's memory, by the system's own figures."""

from __future__ import annotations

import ctypes
import sys
from typing import NamedTuple

__all__ = ["ProcessMemory", "memory_now", "peak_nbytes", "release_pages", "resident_nbytes"]


class ProcessMemory(NamedTuple):
    """What a process holds now, in bytes.

    resident: pages it shares with others count whole, so that this is what it would hold alone. proportional: shared
    pages count in parts, one for each process that has them. anonymous: what no file holds, and so only swap can take.
    """

    resident: int
    proportional: int
    anonymous: int


def memory_now() -> ProcessMemory | None:
    """Return what this process holds; None where the system does not tell, as only Linux does."""
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
            told = dict(line.split()[:2] for line in lines if line.endswith(" kB\n"))
        return ProcessMemory(*(int(told[name]) * 1024 for name in ("Rss:", "Pss:", "Anonymous:")))
    except (OSError, KeyError, ValueError):
        return None


def resident_nbytes() -> int | None:
    """Return what this process alone would hold of memory, in bytes as `peak_nbytes`; None where nothing tells."""
    now = memory_now()
    return None if now is None else now.resident


def release_pages() -> None:
    """Let the C library give the system what it holds and nothing uses, where it can: glibc keeps it otherwise."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def peak_nbytes() -> int | None:
    """Return the largest resident size this process ever had, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    try:
        # Not getrusage: its peak survives exec, so that a child of a large process would report its parent's.
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
