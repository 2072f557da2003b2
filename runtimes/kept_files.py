"""Large files in the user's cache, each with a record of its digest next to it; damaged files are rebuilt."""

import sys
from pathlib import Path

from edgedecode.cache import keep_json, kept_json
from edgedecode.errors import ManifestError
from edgedecode.pack.integrity import file_sha256
from edgedecode.user_notices import notice


def is_whole(path: Path) -> bool:
    """Return whether a file matches its record, by size and time, else by digest; notify the user if it does not."""
    try:
        known = kept_json(_record(path), dict[str, str])
        if known["stamp"] == _stamp(path):
            return True
        if file_sha256(path) == known["sha256"]:
            record_whole(path, known["sha256"], owner=known.get("owner", ""))
            return True
        notice(f"{path} is damaged and will be rebuilt")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, ManifestError):
        notice(f"{path} or its record cannot be read: the file will be rebuilt")
    return False


def record_whole(path: Path, sha256: str, *, owner: str = "") -> None:
    """Record a completely written file. owner: a key of its source; a newer file of the same owner may replace it."""
    keep_json(_record(path), {"sha256": sha256, "stamp": _stamp(path), "owner": owner})


def owner_of(path: Path) -> str:
    """Return the recorded owner of a file; empty: none is recorded."""
    try:
        return kept_json(_record(path), dict[str, str]).get("owner", "")
    except (OSError, ValueError):
        return ""


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def _stamp(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino if sys.platform != 'win32' else 0}"
