"""What exports have finished, kept in the user's cache by digest, so that a rerun goes on where the last one stopped.

A cache is never needed: without a folder, without file locks, without room or beside another export of the same model,
a unit lies in the new pack itself and is simply not kept.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from edgedecode.cache import cache_folder, user_cache
from edgedecode.locks import take_lock

from .unit import Unit

__all__ = ["Kept", "kept_units"]

_log = logging.getLogger(__name__)

_OLDEST_SECONDS = 14 * 24 * 3600
_LARGEST_NBYTES = 8 << 30
_ROOM = 1.05
"""What a model may weigh beyond its forecast: graphs, and one of them once more for the checks."""


class Kept:
    """The units of one export. Holds the locks of those that lie in the cache until it is closed."""

    def __init__(self, folder: Path | None, locks: ExitStack) -> None:
        self._folder = folder
        self._locks = locks
        self._units: list[Unit] = []

    def unit(self, role: str, *, key: str, nbytes: int, pack: Path) -> Unit:
        """Open the unit of this key, about `nbytes` large: in the cache where that can be, else in `pack`."""
        place = self._place(key, role, nbytes)
        unit = Unit(pack if place is None else place, role, key=key, kept=place is not None)
        self._units.append(unit)
        return unit

    def forget(self) -> None:
        """Remove every unit: the pack that they were made for is in its place."""
        for unit in self._units:
            unit.discard()

    def clear(self) -> None:
        """Remove what is not finished, and say that the rest stays."""
        for unit in self._units:
            unit.clear()
        if whole := [f"{unit.role} ({', '.join(unit.steps)})" for unit in self._units if unit.steps]:
            _log.warning("finished and kept: %s; the same command again goes on from there", ", ".join(whole))

    def _place(self, key: str, role: str, nbytes: int) -> Path | None:
        if self._folder is None:
            return None
        if not _locked(self._folder / f"{key}.lock", self._locks):
            _log.warning("another export makes the same %s right now: this one's is not kept in the cache", role)
            return None
        place = self._folder / key
        held = _nbytes(place)
        _prune(self._folder, room=_LARGEST_NBYTES - nbytes)
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            os.utime(place)  # in use today
            if shutil.disk_usage(place).free + held >= nbytes * _ROOM:
                return place
        _log.warning("%s has no room for about %.0f MB: %s is not kept in the cache", self._folder, nbytes / 1e6, role)
        shutil.rmtree(place, ignore_errors=True)
        return None


@contextmanager
def kept_units(*, use: bool = True) -> Iterator[Kept]:
    """Give the cache for the time of an export. Leaving normally forgets its units, leaving otherwise keeps finished
    steps; `use` False keeps nothing.
    """
    with ExitStack() as locks:
        kept = Kept(_folder() if use else None, locks)
        try:
            yield kept
        except BaseException:
            kept.clear()
            raise
        kept.forget()


def _folder() -> Path | None:
    if sys.platform == "win32":  # no locks of this kind there
        return None
    folder = cache_folder("exports")
    if folder is None:
        _log.warning("the cache %s cannot be written: an interrupted export would start anew", user_cache())
    return folder


def _locked(path: Path, locks: ExitStack) -> bool:
    """Take a file's lock until `locks` closes; False where somebody else holds it, or there are no locks."""
    with suppress(OSError):
        if (lock := take_lock(path)) is not None:
            locks.enter_context(lock)
            locks.callback(path.unlink, missing_ok=True)
            return True
    return False


def _prune(folder: Path, *, room: int) -> None:
    """Remove abandoned entries: old ones, and the oldest until all fit into `room` bytes. None that is in use."""
    for entry in sorted(_entries(folder), key=_age):  # the newest first: they keep the room
        room -= _nbytes(entry)
        if room >= 0 and _age(entry) < _OLDEST_SECONDS:
            continue
        with ExitStack() as locks:
            if _locked(folder / f"{entry.name}.lock", locks):
                shutil.rmtree(entry, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir()]


def _age(entry: Path) -> float:
    """Seconds since it was used; forever for one that another process has just removed."""
    try:
        return time.time() - entry.stat().st_mtime
    except OSError:
        return float("inf")


def _nbytes(folder: Path) -> int:
    """What the files of an entry occupy; another process may remove them meanwhile."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.stat().st_size if path.is_file() else 0
    return found
