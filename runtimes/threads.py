"""The default number of threads of a model."""

import os
from pathlib import Path

from edgedecode.errors import InputError

SMALL_NBYTES = 32 * 2**20
"""Smaller weights fit the CPU cache. A second thread then gains little if its core is free (bundled target, five rows:
2.1 against 2.7 ms) and loses much if it is not (5.5 to 6.6 against 3.1 ms)."""
MOST_THREADS = 8
"""Decoding is bound by memory reads; a few cores saturate them."""


def check_threads(threads: int | None) -> None:
    """Raise InputError for fewer than 1 thread; None leaves the choice to the runtime."""
    if threads is not None and threads < 1:
        raise InputError(f"{threads} threads are out of range: 1 or more")


def default_threads(weights_nbytes: int) -> int:
    """Return 1 for a small model, else `most_threads`."""
    return 1 if weights_nbytes < SMALL_NBYTES else most_threads()


def most_threads() -> int:
    """Return the most useful number of threads: the physical cores available to this process, at most eight."""
    return min(MOST_THREADS, _physical_cores())


def _physical_cores() -> int:
    """Return the number of physical cores if Linux reports it, else of logical ones."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    topologies = [Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in allowed]
    try:
        return len({path.read_text(encoding="ascii") for path in topologies})
    except OSError:
        return len(allowed)
