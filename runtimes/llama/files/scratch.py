"""Temporary files that the engine reads once. Leftovers of crashed processes are removed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time

from edgedecode.cache import cache_folder
from edgedecode.errors import RuntimeUnavailable

FOLDER = "scratch"
STALE_SECONDS = 3600.0
"""Files older than this belong to a process that is gone."""


@contextmanager
def scratch_file(name: str) -> Iterator[Path]:
    """Yield the path of a temporary file in the user's cache; it is removed at the end. Raises RuntimeUnavailable."""
    folder = cache_folder(FOLDER)
    _remove_stale(folder)
    try:
        handle, text = tempfile.mkstemp(prefix="edgedecode-", suffix=f"-{name}", dir=folder)
    except OSError as error:
        raise RuntimeUnavailable(f"cannot create a temporary file ({error.strerror}): free some disk space") from None
    os.close(handle)
    path = Path(text)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _remove_stale(folder: Path | None) -> None:
    """Remove the files of crashed processes, ignoring files that cannot be removed."""
    for path in folder.iterdir() if folder is not None else ():
        with suppress(OSError):
            if time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
