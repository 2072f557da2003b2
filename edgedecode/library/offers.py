"""Models that are not here and could be downloaded, and the user's consent to that."""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edgedecode.cache import area, cache_folder
from edgedecode.errors import ManifestError
from edgedecode.locks import FOLDER, wait_for_lock
from edgedecode.memory.sizes import format_nbytes
from edgedecode.user_notices import notice

__all__ = ["Consent", "Offer", "ask_before_downloads", "check_room", "downloading", "fetched", "library_folder"]

_SPARE_NBYTES = 64 * 2**20
"""Room that a download leaves on the disk."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be downloaded. fetch: downloads it and returns its file, or the folder of its pack.

    nbytes: of the download; 0: unknown. note: what was chosen and why; empty: what the name says.
    """

    name: str
    nbytes: int
    fetch: Callable[[], Path]
    note: str = ""

    def __str__(self) -> str:
        size = f", {format_nbytes(self.nbytes, 0)}" if self.nbytes else ""
        return f"{self.name}{size}{f' ({self.note})' if self.note else ''}"


Consent: TypeAlias = Callable[[Offer], bool]
_CONSENT: ContextVar[Consent | None] = ContextVar("question before a download", default=None)


def ask_before_downloads(consent: Consent | None) -> None:
    """Ask from now on, in this context, before a model is downloaded because it was named; None: do not ask."""
    _CONSENT.set(consent)


def fetched(offer: Offer) -> Path:
    """Download an offer, if the user agrees. Raises ManifestError."""
    consent = _CONSENT.get()
    if consent is not None and not consent(offer):
        raise ManifestError(f"{offer.name} is not here and was not downloaded: `edgedecode list` lists what is here")
    if offer.nbytes:
        notice(f"downloading {offer}")
    return offer.fetch()


def library_folder(name: str) -> Path:
    """Return the folder of the library with this name, which need not exist."""
    return area("models") / name


@contextmanager
def downloading(name: str, folder: str) -> Iterator[Path]:
    """Yield a folder for unfinished files beside the library's folder of this name; one process at a time.

    It is removed at the end, and after a full disk. After other errors it stays, so that a download can be resumed.
    Raises ManifestError where the library cannot be written.
    """
    part = library_folder(f".{folder}.part")
    with _lock(name, folder):
        try:
            part.mkdir(parents=True, exist_ok=True)
            yield part
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            shutil.rmtree(part, ignore_errors=True)
            reason = error.strerror or str(error)
            raise ManifestError(f"{name} cannot be stored in {part.parent} ({reason}): make room there") from None
        shutil.rmtree(part, ignore_errors=True)


def check_room(name: str, nbytes: int, folder: Path) -> None:
    """Raise ManifestError if the disk has less room than a download needs."""
    free = shutil.disk_usage(folder).free
    if free < nbytes + _SPARE_NBYTES:
        raise ManifestError(
            f"{name} needs {format_nbytes(nbytes + _SPARE_NBYTES, 0)} and {folder.parent} has {format_nbytes(free, 0)} "
            f"left: make room, or set EDGEDECODE_CACHE to a folder on another disk"
        )


@contextmanager
def _lock(name: str, folder: str) -> Iterator[None]:
    """Let one process at a time download to a folder; no lock where the system has none."""
    lock = None
    with suppress(OSError):
        if (locks := cache_folder(FOLDER)) is not None:
            waiting = f"waiting for another process that downloads {name}"
            lock = wait_for_lock(locks / f"model-{folder}", seconds=math.inf, waiting=waiting)
    with lock or nullcontext():
        yield
