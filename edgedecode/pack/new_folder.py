"""A folder that appears whole or not at all: made beside its place, flushed to disk, renamed."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time

from edgedecode.errors import ExportError
from edgedecode.locks import Lock, take_lock

__all__ = ["check_place", "flush_folder", "new_folder", "remove_abandoned", "work_folder"]

_STALE_SECONDS = 24 * 3600


def check_place(out: Path, *, nbytes: int) -> None:
    """Refuse, before any work, a place that is taken, cannot be written, or has no room for `nbytes`."""
    if out.exists() and not out.is_dir():
        raise ExportError(f"{out} is a file: give a folder that does not exist yet")
    if out.is_dir() and any(out.iterdir()):
        raise ExportError(f"{out} exists and is not empty: remove it, or give another --out")
    parent = _existing(out.absolute().parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ExportError(f"{parent} cannot be written: give another --out")
    free = shutil.disk_usage(parent).free
    if free < nbytes:
        raise ExportError(
            f"about {nbytes / 1e6:.0f} MB are needed and {parent} has {free / 1e6:.0f} MB left: "
            f"make room, or give another --out"
        )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a folder to fill. Leaving normally makes it `out`; leaving by any exception removes every trace."""
    out = out.absolute()
    made = [parent for parent in out.parents if not parent.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(out.parent, name=out.name) as partial:
            yield partial
            _flush(partial)
            if os.name == "nt" and out.is_dir():  # elsewhere an empty folder is replaced
                out.rmdir()
            partial.rename(out)
    except BaseException as error:
        for parent in made:
            _remove_empty(parent)
        if isinstance(error, OSError):
            raise _as_export_error(error, out) from error
        raise
    with suppress(OSError):  # it is there, and whole
        flush_folder(out.parent)


@contextmanager
def work_folder(parent: Path, *, name: str) -> Iterator[Path]:
    """Give a folder in `parent` for work on `name`, and remove it at the end, unless it was renamed.

    What killed processes left of the same work goes first. Raises OSError.
    """
    remove_abandoned(parent, name=name)
    folder, lock = _locked_folder(parent, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _locked_folder(parent: Path, name: str) -> tuple[Path, Lock]:
    """Make a folder of a name that nobody had; its lock shows other processes that it is in use."""
    while True:
        folder = parent / f".{name}.partial-w{secrets.token_hex(4)}"
        with suppress(FileExistsError):
            folder.mkdir()
            try:
                lock = take_lock(folder)
            except FileNotFoundError:  # another process took it for abandoned before it was locked
                continue
            except OSError:  # a disk without locks: it is taken for abandoned when it is old
                return folder, Lock(-1)
            if lock is not None:
                return folder, lock


def _as_export_error(error: OSError, out: Path) -> ExportError:
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return ExportError(f"another process made {out} meanwhile: remove it, or give another --out")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExportError(
            f"the disk became full while {out} was written: make room and start again; nothing was left behind"
        )
    return ExportError(f"{out} could not be written ({error.strerror or error}): nothing was left behind")


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def remove_abandoned(parent: Path, *, name: str | None = None) -> None:
    """Remove what killed processes left in `parent` of the folder `name`, or of any."""
    for folder in parent.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"):
        with suppress(OSError):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder that nobody holds; one that shows nothing by a lock, when nobody wrote to it for a day."""
    silent = folder.name.rpartition("-")[2].isdecimal()  # an older edgedecode's
    try:
        lock = take_lock(folder)
    except OSError:
        lock, silent = Lock(-1), True
    if lock is None or (silent and not _is_stale(folder)):
        return
    with lock:
        shutil.rmtree(folder, ignore_errors=True)


def _is_stale(folder: Path) -> bool:
    return time() - max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) > _STALE_SECONDS


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _flush(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        flush_folder(folder)


def flush_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be flushed there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
