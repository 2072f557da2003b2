"""One measurement at a time on a machine: a second bench waits until the first has ended."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from edgedecode.cache import cache_folder
from edgedecode.locks import FOLDER, Lock, take_lock, wait_for_lock

__all__ = ["one_at_a_time"]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the machine's bench lock. Where there are no file locks, or no cache folder, nothing is held."""
    folder, lock = cache_folder(FOLDER), None
    if folder is not None:
        with suppress(OSError):
            lock = _taken(folder / "bench")
    with lock or nullcontext():
        yield


def _taken(path: Path) -> Lock | None:
    lock = take_lock(path)
    if lock is None:
        print("waiting for another bench on this machine to end", file=sys.stderr, flush=True)
        lock = wait_for_lock(path, seconds=math.inf)
    return lock
