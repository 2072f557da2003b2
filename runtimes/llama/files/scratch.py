"""Files that the engine reads once: written, used, removed; what killed processes left of them is removed too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time

from edgedecode.cache import cache_folder
from edgedecode.errors import RuntimeUnavailable

__all__ = ["scratch_file"]

FOLDER = "scratch"
STALE_SECONDS = 3600.0
"""Nobody uses such a file for so long: its process is gone."""


@contextmanager
def scratch_file(name: str) -> Iterator[Path]:
    """Give the path of a file to write, in the user's cache; it is removed at the end. Raises RuntimeUnavailable."""
    folder = cache_folder(FOLDER)
    _remove_stale(folder)
    try:
        handle, text = tempfile.mkstemp(prefix="edgedecode-", suffix=f"-{name}", dir=folder)
    except OSError as error:
        raise RuntimeUnavailable(f"no temporary file can be made ({error.strerror}): free some disk space") from None
    os.close(handle)
    path = Path(text)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _remove_stale(folder: Path | None) -> None:
    """Remove what killed processes left; a file that is gone meanwhile, or not ours to remove, is not an error."""
    for path in folder.iterdir() if folder is not None else ():
        with suppress(OSError):
            if time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
