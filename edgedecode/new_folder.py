"""A folder that appears whole or not at all: made beside its place, flushed to disk, renamed."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgedecode.errors import ExportError

__all__ = ["check_place", "new_folder", "process_runs", "remove_abandoned"]


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
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        remove_abandoned(out.parent, name=out.name)
        partial.mkdir(parents=True)
        yield partial
        _flush(partial)
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:
            _remove_empty(parent)
        if isinstance(error, OSError):
            raise _as_export_error(error, out) from error
        raise
    with suppress(OSError):  # it is there, and whole
        flush_folder(out.parent)


def _as_export_error(error: OSError, out: Path) -> ExportError:
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
        owner = folder.name.rpartition("-")[2]
        if owner.isdecimal() and not process_runs(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def process_runs(process: int) -> bool:
    """Tell whether a process of this number is alive."""
    if os.name == "nt":  # there, a signal of 0 would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


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
