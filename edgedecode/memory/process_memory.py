"""The memory of a process as the system reports it. Systems other than Linux need psutil."""

import os
import sys
from contextlib import suppress
from typing import Any, NamedTuple

_ARENAS, _MAPPED_FROM = -8, -3
"""glibc's M_ARENA_MAX, and M_MMAP_THRESHOLD, which also stops growing once it is set."""


class ProcessMemory(NamedTuple):
    """The memory of a process in bytes; None: the system does not report it.

    resident (RSS): shared pages count fully. proportional (PSS): shared pages are divided among the processes that map
    them. anonymous: pages without a file, which only swap can evict; from psutil, pages unique to the process (USS).
    """

    resident: int
    proportional: int | None = None
    anonymous: int | None = None


def memory_now() -> ProcessMemory | None:
    """Return the memory of this process; None: the system does not report it."""
    return memory_of(os.getpid())


def memory_of(pid: int) -> ProcessMemory | None:
    """Return the memory of a process; None: it has ended, or the system does not report it.

    The Linux kernel visits every page: 2 ms for 150 MB were measured.
    """
    if sys.platform != "linux":
        process = _process(pid)
        return process and ProcessMemory(process.memory_info().rss, None, process.memory_full_info().uss)
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            fields = dict(line.split()[:2] for line in lines if line.endswith(" kB\n"))
        return ProcessMemory(*(int(fields[name]) * 1024 for name in ("Rss:", "Pss:", "Anonymous:")))
    except (OSError, KeyError, ValueError):
        return None


def resident_nbytes() -> int | None:
    """Return the resident size of this process in bytes, comparable with `peak_nbytes`; None: not reported."""
    now = memory_now()
    return None if now is None else now.resident


def release_pages() -> None:
    """Return the C library's free pages to the system where possible; glibc otherwise keeps them."""
    import ctypes

    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def return_freed_memory() -> None:
    """Tune glibc so that memory freed by threads returns to the system, for the rest of the process.

    glibc gives each thread an arena of its own, and keeps freed blocks of up to 32 MB in it: a server held 325 MB where
    230 MB were leased, and 158 MB with this.
    """
    import ctypes

    if sys.platform == "linux" and (option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        option(_ARENAS, 1)
        option(_MAPPED_FROM, 128 << 10)


def peak_nbytes() -> int | None:
    """Return the peak resident size of this process in bytes; None: not reported."""
    if sys.platform == "win32":
        process = _process(os.getpid())
        return process and process.memory_info().peak_wset
    # Not getrusage first: its peak survives exec, so that a child of a large process would report its parent's.
    with (
        suppress(OSError, StopIteration, ValueError),
        open("/proc/self/status", encoding="ascii", errors="replace") as lines,
    ):
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def held_nbytes() -> int | None:
    """Return the resident size of this process, or its peak if the system reports only that; None: neither."""
    return resident_nbytes() or peak_nbytes()


def _process(pid: int) -> Any:  # noqa: ANN401  (psutil has no types)
    """Return psutil's view of a process; None without psutil."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil.Process(pid)
