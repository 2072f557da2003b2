"""Locks a pack while it changes, so that a concurrent open sees either the old or the new pack, never a mixture."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from time import monotonic, sleep

from edgedecode.errors import ManifestError
from edgedecode.locks import Lock, wait_for_lock
from edgedecode.user_notices import notice

CHANGE_SECONDS, OPEN_SECONDS = 600.0, 60.0
"""How long a change and an open wait for the lock. The first open of a large pack hashes it, which may take minutes; a
change takes less than a second."""
MISSING_SECONDS = 1.0
"""How long an open waits for a folder that does not exist: a replacement takes two renames."""


@contextmanager
def changing(root: Path) -> Iterator[None]:
    """Lock a pack exclusively, for a change of its manifest or of the files that it lists.

    Waits until no other process opens or changes it. Raises ManifestError after ten minutes.
    """
    try:
        lock = _locked(root, seconds=CHANGE_SECONDS, shared=False)
    except OSError:  # a file system without locks: only the atomic renames protect the pack
        lock = Lock(-1)
    if lock is None:
        raise ManifestError(
            f"another process has locked the pack {root} for {CHANGE_SECONDS / 60:.0f} minutes: nothing was changed; "
            f"try again when it is done"
        )
    with lock:
        yield


@contextmanager
def opening(root: Path, *, missing_seconds: float = MISSING_SECONDS) -> Iterator[None]:
    """Take a shared lock on a pack, so that it does not change while its manifest is read and its files are opened.

    missing_seconds: how long to wait for a folder that does not exist; 0 for a pack that was there before.
    """
    try:
        lock = _shared_lock(root, missing_seconds)
    except OSError:  # no permission, or a file system without locks
        lock = Lock(-1)
    if lock is None:
        notice(f"another process has locked the pack {root} for {OPEN_SECONDS:.0f} s: opening it without the lock")
    with lock or nullcontext():
        if os.name == "nt" and lock is not None:
            lock.release()  # Windows has no shared lock here: a second open would wait for the first
        yield


def _shared_lock(root: Path, missing_seconds: float) -> Lock | None:
    """Take a shared lock. Retries while the folder is missing: a replacement may be between its two renames."""
    deadline = monotonic() + missing_seconds
    while True:
        with suppress(FileNotFoundError):
            return _locked(root, seconds=OPEN_SECONDS, shared=True)
        if monotonic() >= deadline:
            return Lock(-1)
        sleep(0.01)


def _locked(root: Path, *, seconds: float, shared: bool) -> Lock | None:
    waiting = f"waiting for another process that opens or changes the pack {root}"
    return wait_for_lock(root, seconds=seconds, waiting=waiting, shared=shared, make=False)
