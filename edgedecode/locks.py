"""Advisory locks between processes and between threads. The system ends a lock with its process: none goes stale.

A folder is locked itself, so that nothing lies in it for that; on Windows a file in the user's cache stands for it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path
from time import monotonic, sleep

from edgedecode.cache import cache_folder
from edgedecode.user_notices import notice

__all__ = ["FOLDER", "Lock", "take_lock", "wait_for_lock"]

FOLDER = "locks"
_POLL_SECONDS = 0.01
_SILENT_SECONDS = 0.5
"""Waits shorter than this are not worth a notice."""


class Lock:
    """A lock that is held until it is released. A context manager, which releases it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        """Give it back. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def take_lock(path: Path, *, shared: bool = False, make: bool = True) -> Lock | None:
    """Lock a folder, or a file, which is made where it is not there; None: somebody else holds it.

    make: False raises FileNotFoundError where nothing is there, and makes nothing.
    shared: beside others who share it, instead of alone; on Windows alone. Raises OSError where nothing can be locked.
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
    """Take a lock as soon as it is free, with the notice `waiting`; None: somebody holds it still. Raises OSError."""
    started, told = monotonic(), not waiting
    while (lock := take_lock(path, shared=shared, make=make)) is None and monotonic() - started < seconds:
        if not told and monotonic() - started > _SILENT_SECONDS:
            notice(waiting)
            told = True
        sleep(_POLL_SECONDS)
    return lock


def _place(path: Path) -> Path:
    """Return what is locked for `path`."""
    if sys.platform == "win32" and path.is_dir():
        folder = cache_folder(FOLDER)
        if folder is None:
            raise OSError(errno.ENOLCK, "the cache cannot be written")
        return folder / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:24]
    return path


def _taken(handle: int, *, shared: bool) -> bool:
    """Try once. Raises OSError where the disk knows no locks."""
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
    """Tell whether the file is still the one at this place: it may have been replaced before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), place.stat())
    except FileNotFoundError:
        return False
