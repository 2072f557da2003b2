"""A pack is held while it changes: who opens it meanwhile gets the old or the new one, never a mixture of both."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from time import monotonic, sleep

from edgedecode.cache import aside
from edgedecode.errors import ManifestError
from edgedecode.locks import Lock, wait_for_lock
from edgedecode.user_notices import notice

from .manifest import MANIFEST_NAME, Manifest
from .new_folder import flush_folder

__all__ = ["changing", "commit", "opening", "remove_files", "replace_manifest"]

CHANGE_SECONDS, OPEN_SECONDS = 600.0, 60.0
"""Opening a large pack for the first time hashes it, which may take minutes; a change takes less than a second."""
GONE_SECONDS = 1.0


@contextmanager
def changing(root: Path) -> Iterator[None]:
    """Hold a pack alone: for every change of its manifest, and of the files that it lists.

    Waits until others have opened or changed it; raises ManifestError where that takes ten minutes.
    """
    try:
        lock = _held(root, seconds=CHANGE_SECONDS, shared=False)
    except OSError:  # a disk without locks: the renames alone keep it whole
        lock = Lock(-1)
    if lock is None:
        raise ManifestError(
            f"another process has held the pack {root} for {CHANGE_SECONDS / 60:.0f} minutes: nothing was changed; "
            f"try again when it is done"
        )
    with lock:
        yield


@contextmanager
def opening(root: Path) -> Iterator[None]:
    """Keep a pack as it is while its manifest is read and its files are opened."""
    try:
        lock = _shared(root)
    except OSError:  # not ours to read, or a disk without locks
        lock = Lock(-1)
    if lock is None:
        notice(f"another process has held the pack {root} for {OPEN_SECONDS:.0f} s: opening it without the lock")
    with lock or nullcontext():
        if os.name == "nt" and lock is not None:
            lock.release()  # nothing is shared there, so that opening it twice at once would wait
        yield


def replace_manifest(root: Path, text: str) -> None:
    """Replace a held pack's manifest in one step; it is on the disk then.

    Raises ManifestError for a text that is none, or OSError, the old one unchanged.
    """
    Manifest.from_json(json.loads(text))
    with aside(root / MANIFEST_NAME) as fresh, fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    flush_folder(root)


def commit(root: Path, text: str, *, moves: Mapping[Path, Path]) -> None:
    """Move new files into a held pack, then its manifest, which names them.

    Whatever interrupts it, the pack is the old or the new one: files that the manifest does not name yet go again.
    """
    try:
        for made, final in moves.items():
            made.replace(final)
        for folder in {final.parent for final in moves.values()}:
            flush_folder(folder)  # they are there for good before the manifest names them
        replace_manifest(root, text)
    except BaseException:
        if (root / MANIFEST_NAME).read_text(encoding="utf-8") != text:
            for final in moves.values():
                final.unlink(missing_ok=True)
        raise


def remove_files(root: Path, names: Sequence[str]) -> None:
    """Remove files that a held pack's manifest names no longer; what cannot be removed stays, and nothing reads it."""
    for name in names:
        with suppress(OSError):
            (root / name).unlink(missing_ok=True)


def _shared(root: Path) -> Lock | None:
    """Share a pack; one that is not there may be between the two renames that replace it."""
    gone = monotonic() + GONE_SECONDS
    while monotonic() < gone:
        with suppress(FileNotFoundError):
            return _held(root, seconds=OPEN_SECONDS, shared=True)
        sleep(0.01)
    return Lock(-1)


def _held(root: Path, *, seconds: float, shared: bool) -> Lock | None:
    waiting = f"waiting for another process that opens or changes the pack {root}"
    return wait_for_lock(root, seconds=seconds, waiting=waiting, shared=shared, make=False)
