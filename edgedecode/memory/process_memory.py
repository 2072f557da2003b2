"""What this process holds of the machine's memory, by the system's own figures."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["peak_nbytes", "release_pages", "resident_nbytes"]


def resident_nbytes() -> int | None:
    """Return what this process alone would hold of memory: pages it shares with others count whole.

    In bytes, as `peak_nbytes` counts them; None where the system does not tell.
    """
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))
    except (OSError, StopIteration, ValueError):
        return None


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
