"""The memory of a process as the system reports it. Systems other than Linux need psutil."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NamedTuple

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
        return _by_psutil(pid, full=True)
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            fields = dict(line.split()[:2] for line in lines if line.endswith(" kB\n"))
        return ProcessMemory(*(int(fields[name]) * 1024 for name in ("Rss:", "Pss:", "Anonymous:")))
    except (OSError, KeyError, ValueError):
        return None


class Counters:
    """The kernel's counters of a process: like `memory_of` without proportional pages, in constant time.

    Some Linux versions count approximately: a tenth of a megabyte per processor may be missing.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._page = pid, os.sysconf("SC_PAGE_SIZE") if sys.platform == "linux" else 0
        self._file = -1
        if self._page:
            with suppress(OSError):
                self._file = os.open(f"/proc/{pid}/statm", os.O_RDONLY)  # stays with the process if its pid is reused

    def read(self) -> ProcessMemory | None:
        """Return the current memory; None: the process has ended, or the system does not report it."""
        if not self._page:
            return _by_psutil(self._pid, full=False)
        try:
            resident, shared = (int(pages) * self._page for pages in os.pread(self._file, 128, 0).split()[1:3])
        except (OSError, ValueError):
            return None
        return ProcessMemory(resident, None, resident - shared) if resident else None  # 0: a zombie


def highest(one: ProcessMemory, other: ProcessMemory) -> ProcessMemory:
    """Return the larger known figure of each kind."""
    known = [[each for each in pair if each is not None] for pair in zip(one, other, strict=True)]
    resident, proportional, anonymous = (max(pair, default=None) for pair in known)
    assert resident is not None
    return ProcessMemory(resident, proportional, anonymous)


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
        return None
    # Not getrusage first: its peak survives exec, so that a child of a large process would report its parent's.
    if (peak := high_water_nbytes(os.getpid())) is not None:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def held_nbytes() -> int | None:
    """Return the resident size of this process, or its peak if the system reports only that; None: neither."""
    return resident_nbytes() or peak_nbytes()


def high_water_nbytes(pid: int) -> int | None:
    """Return the peak resident size of a process on Linux; None elsewhere."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        return None


def _by_psutil(pid: int, *, full: bool) -> ProcessMemory | None:
    """Return psutil's figures; None without psutil. full: include USS, for which psutil visits every page."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        resident = int(process.memory_info().rss)
        try:
            return ProcessMemory(resident, None, int(process.memory_full_info().uss) if full else None)
        except psutil.AccessDenied:  # macOS allows it for other processes only to root
            return ProcessMemory(resident)
    except psutil.Error:
        return None
