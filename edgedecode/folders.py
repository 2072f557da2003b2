"""Where the user's cache lies. Knows only paths; makes nothing until it is asked to write."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["cache_folder", "keep_json", "user_cache"]


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


def keep_json(path: Path, value: object) -> None:
    """Write a value to a file of the cache, in one piece; a full or read-only disk only means that it is made again."""
    fresh = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        fresh.write_text(json.dumps(value), encoding="utf-8")
        fresh.replace(path)
    with suppress(OSError):
        fresh.unlink(missing_ok=True)
