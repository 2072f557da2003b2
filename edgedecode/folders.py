"""Where the user's cache lies. Knows only paths; makes nothing until it is asked to write."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_folder", "user_cache"]


def user_cache() -> Path:
    """Return the cache folder of this user, by the platform's habit; `EDGEDECODE_CACHE` overrides it."""
    if override := os.environ.get("EDGEDECODE_CACHE"):
        return Path(override)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "edgedecode"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "edgedecode"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgedecode"


def cache_folder(name: str) -> Path | None:
    """Make and return a folder in the user's cache; None where it cannot be written (a cache is never needed)."""
    folder = user_cache() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None
