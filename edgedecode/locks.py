"""Advisory locks between processes and between threads. The system releases them when a process ends, so none is stale.

A folder is locked directly, without a lock file in it; on Windows a file in the user's cache is locked instead.
"""

import errno
import hashlib
import os
import sys
from pathlib import Path
from time import monotonic, sleep

from edgedecode.cache import cache_folder
from edgedecode.user_notices import notice

FOLDER = "locks"
_POLL_SECONDS = 0.01
_SILENT_SECONDS = 0.5
"""Shorter waits produce no notice."""


class Lock:
    """A lock that is held until `release`. As a context manager it releases itself."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def take_lock(path: Path, *, shared: bool = False, make: bool = True) -> Lock | None:
    """Lock a folder, or a file, which is created if it does not exist; None: the lock is held elsewhere.

    make: False creates nothing and raises FileNotFoundError instead.
    shared: take a shared instead of an exclusive lock; exclusive on Windows. Raises OSError if locking is impossible.
    """
    place = _place(path)
    flags = os.O_RDONLY if place.is_dir() else os.O_RDWR | (os.O_CREAT if make or place != path else 0)
    while True:
        handle = os.open(place, flags, 0o600)
        try:
            taken = _taken(handle, shared=shared)
            if taken and _is_at(place, handle):
                return Lock(handle)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if not taken:
            return None


def wait_for_lock(
    path: Path, *, seconds: float, waiting: str = "", shared: bool = False, make: bool = True
) -> Lock | None:
    """Wait up to `seconds` for a lock; None: it is still held elsewhere. Raises OSError.

    waiting: a notice for the user, unless the wait is short.
    """
    started, notified = monotonic(), not waiting
    while (lock := take_lock(path, shared=shared, make=make)) is None and monotonic() - started < seconds:
        if not notified and monotonic() - started > _SILENT_SECONDS:
            notice(waiting)
            notified = True
        sleep(_POLL_SECONDS)
    return lock


def _place(path: Path) -> Path:
    """Return the path that is locked for `path`."""
    if sys.platform == "win32" and path.is_dir():
        folder = cache_folder(FOLDER)
        if folder is None:
            raise OSError(errno.ENOLCK, "the cache cannot be written")
        return folder / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:24]
    return path


def _taken(handle: int, *, shared: bool) -> bool:
    """Try once to take the lock. Raises OSError if the file system does not support locks."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(place: Path, handle: int) -> bool:
    """Return whether the open file is still the one at this path; it may have been replaced before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), place.stat())
    except FileNotFoundError:
        return False
