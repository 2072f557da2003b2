"""One measurement at a time on a machine: a second bench waits until the first has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from edgedecode.folders import cache_folder

__all__ = ["one_at_a_time"]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the machine's bench lock. Where there are no file locks, or no cache folder, nothing is held."""
    folder = cache_folder("locks")
    if sys.platform == "win32" or folder is None:
        yield
        return
    import fcntl

    with (folder / "bench").open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another bench on this machine to end", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
