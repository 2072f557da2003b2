"""Models that are not here and could be downloaded."""

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgedecode.cache import area, unwritable
from edgedecode.errors import ManifestError
from edgedecode.memory.sizes import format_nbytes
from edgedecode.user_notices import may_download, notice

_SPARE_NBYTES = 64 * 2**20
"""Room that a download leaves on the disk."""
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be downloaded. fetch: downloads it and returns its file, or the folder of its pack.

    nbytes: of the download; 0: unknown. note: what was chosen and why; empty: what the name says. is_head: it is a
    drafting head, which runs beside a model.
    """

    name: str
    nbytes: int
    fetch: Callable[[], Path]
    note: str = ""
    is_head: bool = False

    def __str__(self) -> str:
        size = f", {format_nbytes(self.nbytes, 0)}" if self.nbytes else ""
        return f"{self.name}{size}{f' ({self.note})' if self.note else ''}"


def fetched(offer: Offer) -> Path:
    """Download an offer, if the user agrees. Raises ManifestError."""
    if not may_download(str(offer)):
        raise ManifestError(f"{offer.name} is not here and was not downloaded: `edgedecode list` lists what is here")
    notice(f"downloading {offer}")
    return offer.fetch()


def library_folder(name: str) -> Path:
    """Return the folder of the library with this name, which need not exist."""
    return area("models") / name


@contextmanager
def downloading(folder: Path) -> Iterator[Path]:
    """Yield a folder for unfinished files beside one of the library; one process at a time.

    It is removed at the end, and after a full disk. After other errors it stays, so that a download can be resumed.
    Raises ManifestError where the library cannot be written.
    """
    from edgedecode.pack.hub import download_lock  # late: every command that may download imports this module

    part = folder.with_name(f".{folder.name}.part")
    with download_lock(folder):
        try:
            part.mkdir(parents=True, exist_ok=True)
            yield part
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            shutil.rmtree(part, ignore_errors=True)
            raise ManifestError(unwritable(folder, error)) from None
        except ManifestError:
            if not any(each.stat().st_size for each in part.rglob("*") if each.is_file()):  # nothing to go on with
                shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(part, ignore_errors=True)


def check_room(name: str, nbytes: int, folder: Path) -> None:
    """Raise ManifestError if the disk has less room than a download needs."""
    free, needed = shutil.disk_usage(folder).free, nbytes + _SPARE_NBYTES
    if free < needed:
        raise ManifestError(
            f"{name} needs {format_nbytes(needed, 0)} and {folder.parent} has {format_nbytes(free, 0)} left: make "
            f"room, or set EDGEDECODE_CACHE to a folder on another disk"
        )
