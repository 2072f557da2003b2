"""A lock that makes a second bench on the same machine wait until the first has ended."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from edgedecode.cache import cache_folder
from edgedecode.locks import FOLDER, wait_for_lock


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the machine's bench lock. Does nothing without file locks or a cache folder."""
    folder, lock = cache_folder(FOLDER), None
    waiting = "waiting for another bench on this machine to end"
    if folder is not None:
        with suppress(OSError):
            lock = wait_for_lock(folder / "bench", seconds=math.inf, waiting=waiting)
    with lock or nullcontext():
        yield
