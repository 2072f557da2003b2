"""Which packs are open in a process: each holds a shared lock while it is open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from edgedecode.cache import area, cache_folder, facts_key
from edgedecode.locks import FOLDER, Lock, take_lock

__all__ = ["hold_in_use", "is_in_use"]


def hold_in_use(root: Path) -> Lock | None:
    """Mark a pack as open until the lock is released; None: this system cannot."""
    if os.name == "nt" or (folder := cache_folder(FOLDER)) is None:  # no shared locks
        return None
    with suppress(OSError):
        return take_lock(folder / _name(root), shared=True)
    return None


def is_in_use(root: Path) -> bool:
    """Return whether a process has the pack open, as far as this system tells."""
    with suppress(OSError):
        lock = take_lock(area(FOLDER) / _name(root), make=False)
        if lock is None:
            return True
        lock.release()
    return False


def _name(root: Path) -> str:
    return f"open-{facts_key(root.resolve())}"
