"""Creates a folder atomically: it is filled under a temporary name next to its destination, flushed and renamed."""

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

_STALE_SECONDS = 24 * 3600


def check_place(out: Path, *, nbytes: int) -> None:
    """Raise ExportError if `out` is taken, cannot be written, or has no room for `nbytes`."""
    if out.exists() and not out.is_dir():
        raise ExportError(f"{out} is a file: give a folder that does not exist yet")
    if out.is_dir() and any(out.iterdir()):
        raise ExportError(f"{out} exists and is not empty: remove it, or give another --out")
    parent = _existing(out.absolute().parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ExportError(f"{parent} cannot be written: give another --out")
    check_room(parent, nbytes, remedy="give another --out")


def check_room(folder: Path, nbytes: int, *, remedy: str) -> None:
    """Raise ExportError if a folder's disk has no room for `nbytes`; remedy: what else to do than make room."""
    if (free := shutil.disk_usage(folder).free) < nbytes:
        raise ExportError(
            f"about {nbytes / 1e6:.1f} MB are needed and {folder} has {free / 1e6:.1f} MB left: make room, or {remedy}"
        )


def link_or_copy(path: Path, place: Path) -> None:
    """Make `place` the same file, or a copy: on another disk, or a file system without hard links."""
    try:
        os.link(path, place)
    except OSError:
        shutil.copyfile(path, place)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill. It becomes `out` on normal exit; on any exception every trace is removed."""
    out = out.absolute()
    created = [parent for parent in out.parents if not parent.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(out.parent, name=out.name) as partial:
            yield partial
            _flush(partial)
            if os.name == "nt" and out.is_dir():  # elsewhere the rename replaces an empty folder
                out.rmdir()
            partial.rename(out)
    except BaseException as error:
        for parent in created:
            _remove_empty(parent)
        if isinstance(error, OSError):
            raise _as_export_error(error, out) from error
        raise
    with suppress(OSError):  # the folder is complete by now: a failed flush is no reason to fail
        flush_folder(out.parent)


@contextmanager
def work_folder(parent: Path, *, name: str) -> Iterator[Path]:
    """Yield a temporary folder in `parent` for work on `name`, and remove it at the end unless it was renamed.

    First removes leftovers of crashed processes for the same `name`. Raises OSError.
    """
    remove_abandoned(parent, name=name)
    folder, lock = _locked_folder(parent, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _locked_folder(parent: Path, name: str) -> tuple[Path, Lock]:
    """Create a folder under a new name and lock it, so that other processes see that it is in use."""
    while True:
        folder = parent / f".{name}.partial-w{secrets.token_hex(4)}"
        with suppress(FileExistsError):
            folder.mkdir()
            try:
                lock = take_lock(folder)
            except FileNotFoundError:  # another process removed it as abandoned before it was locked
                continue
            except OSError:  # a file system without locks: it counts as abandoned once it is old
                return folder, Lock(-1)
            if lock is not None:
                return folder, lock


def _as_export_error(error: OSError, out: Path) -> ExportError:
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return ExportError(f"another process created {out} in the meantime: remove it, or give another --out")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExportError(
            f"the disk became full while {out} was written: make room and start again; nothing was left behind"
        )
    return ExportError(f"{out} could not be written ({error.strerror or error}): nothing was left behind")


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def remove_abandoned(parent: Path, *, name: str | None = None) -> None:
    """Remove temporary folders of crashed processes from `parent`: those for `name`, or all."""
    for folder in parent.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"):
        with suppress(OSError):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder that no process locks; where locks are not used, one that has been unchanged for a day."""
    try:
        lock = take_lock(folder)
    except OSError:
        lock = Lock(-1) if _is_stale(folder) else None
    if lock is None:
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
    if os.name == "nt":  # Windows cannot flush a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
