"""The user's cache: its location, its folders, and atomic writes of its files."""

import errno
import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import TypeVar

from msgspec.json import decode

from edgedecode.typed_json import described

MAKING = ".making"
"""Suffix of unfinished files."""
_STALE_SECONDS = 3600
"""Age at which an unfinished file is assumed to be from a crashed process and deleted."""
_MOST_NBYTES = 1 << 20
"""Largest JSON file that is read."""
_Kind = TypeVar("_Kind")

AREAS: Mapping[str, str] = {
    "costs": "costs of forward passes on this device",
    "history": "messages typed in chats, to recall them",
    "engines": "engines that run on this machine",
    "verified": "packs whose files were checked",
    "exports": "slow steps of interrupted exports",
    "gguf": "GGUF files built from packs for llama.cpp",
    "copies": "how much of each GGUF file llama.cpp repacks on this machine",
    "tiles": "weights prepared for this machine's kernels",
    "kernels": "whether edgedecode's kernels run on this machine",
    "threads": "number of threads chosen for each model",
    "scaled": "packs widened by bench --scale",
    "scratch": "temporary files for llama.cpp",
    "peers": "files that bench --against wrote for other engines",
    "locks": "locks of running benches and downloads; on Windows, of open packs too",
    "packs": "downloaded packs",
    "models": "downloaded models: `edgedecode list` shows them, `edgedecode rm` removes one",
    "headers": "what the headers of models on this machine say",
    "native": "the native library's program, built for self-tests",
    "files": "packs of GGUF files that were opened without an import",
}
"""Every folder in the user's cache and its contents. `cache clear` deletes only these."""


def user_cache() -> Path:
    """Return the user's cache folder, by the platform's convention; `EDGEDECODE_CACHE` overrides it."""
    if override := os.environ.get("EDGEDECODE_CACHE"):
        return Path(override)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "edgedecode"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "edgedecode"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgedecode"


def area(name: str) -> Path:
    """Return the path of one of `AREAS` without creating it."""
    assert name in AREAS, f"{name} is not in the table of the cache's folders"
    return user_cache() / name


def cache_folder(name: str, *, private: bool = False) -> Path | None:
    """Create and return one of `AREAS`; None: it is not writable (the cache is always optional).

    private: only this user may read it, for example because it contains conversations.
    """
    folder = area(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if private:
            close_to_others(folder)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def unwritable(folder: Path, error: OSError) -> str:
    """Return one line about a folder of the cache that could not be written: why, and what to do."""
    remedy = "make room, or set" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "set"
    return f"{folder} cannot be written ({error.strerror or error}): {remedy} EDGEDECODE_CACHE to another folder"


def close_to_others(path: Path) -> None:
    """Remove other users' permissions on a file or folder. Raises OSError."""
    mode = path.stat().st_mode
    if mode & 0o077:
        path.chmod(mode & 0o700)


def sizes(folder: Path) -> Iterator[int]:
    """Yield the size of each file in a folder, links as such; what others remove meanwhile is passed over."""
    for place, folders, names in os.walk(folder):  # rglob fails where a listed folder is gone
        for name in (*names, *(each for each in folders if os.path.islink(os.path.join(place, each)))):
            with suppress(OSError):
                yield os.lstat(os.path.join(place, name)).st_size


def open_private(path: str, flags: int) -> int:
    """Open with permissions for this user only; an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def facts_key(*facts: object) -> str:
    """Return the name of a cache file: a hash of all facts that determine its contents."""
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:24]


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it replaces `path` at the end, and is deleted after an error.

    Several processes may write the same file. Temporary files of crashed processes are deleted after an hour.
    """
    for unfinished in path.parent.glob(f"*.{'[0-9a-f]' * 8}{MAKING}"):  # strict, since the folder may be the user's own
        with suppress(OSError):
            if time() - unfinished.stat().st_mtime > _STALE_SECONDS:
                unfinished.unlink()
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}{MAKING}")
    try:
        yield fresh
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def replace_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write a text file atomically, and flush it to disk. private: for this user only. Raises OSError."""
    with aside(path) as fresh, open(fresh, "w", encoding="utf-8", opener=open_private if private else None) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def keep_json(path: Path, value: object) -> None:
    """Write a value to a cache file atomically. An OSError is ignored: the value is then computed again next time."""
    with suppress(OSError), aside(path) as fresh, open(fresh, "w", encoding="utf-8") as file:
        json.dump(value, file)


def kept_json(path: Path, kind: type[_Kind]) -> _Kind:
    """Read a value of this type that `keep_json` wrote.

    Raises FileNotFoundError if there is no file, ValueError with the reason if it cannot be used.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a file")
        if found.st_size > _MOST_NBYTES:
            raise ValueError("it is far too large")
        return decode(path.read_bytes(), type=described(kind))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
