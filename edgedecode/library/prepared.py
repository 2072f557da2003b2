"""What the cache holds for a model: its file's pack, prepared weights, and a lock while a process has it open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from edgedecode.cache import area, cache_folder, facts_key
from edgedecode.errors import ManifestError
from edgedecode.locks import FOLDER, Lock, take_lock
from edgedecode.pack.manifest import Manifest

if TYPE_CHECKING:
    from .stored import StoredModel

TILES_NAME = 16
"""The digits of a weights file's digest that begin the names of its tiles, and of the findings about it."""


def hold_in_use(root: Path) -> Lock | None:
    """Mark a pack as open until the lock is released; None: this system cannot."""
    if os.name != "nt" and (folder := cache_folder(FOLDER)) is not None:  # Windows has no shared locks
        with suppress(OSError):
            return take_lock(folder / _lock_name(root), shared=True)
    return None


def is_in_use(model: StoredModel) -> bool:
    """Return whether a process has the model open, as far as this system tells."""
    with suppress(OSError):
        lock = take_lock(area(FOLDER) / _lock_name(_pack(model)), make=False)
        if lock is None:
            return True
        lock.release()
    return False


def is_prepared(model: StoredModel) -> bool:
    """Return whether weights of the model are prepared for this machine's kernels."""
    return any(path.suffix == ".tiles" for path in _tiles(_pack(model)))


def remove_prepared(model: StoredModel) -> None:
    """Remove what the cache holds for a model, except its own files."""
    pack = _pack(model)
    for path in list(_tiles(pack)):
        with suppress(OSError):
            path.unlink()
    if pack != model.path:
        rmtree(pack, ignore_errors=True)


def _pack(model: StoredModel) -> Path:
    """Return the folder of the model's pack, which need not exist."""
    if model.path.is_dir():
        return model.path
    from .file_packs import file_pack_folder

    with suppress(ManifestError):
        return file_pack_folder(model.path)
    return model.path


def _lock_name(root: Path) -> str:
    return f"open-{facts_key(root.resolve())}"


def _tiles(pack: Path) -> Iterator[Path]:
    with suppress(ManifestError):
        manifest = Manifest.load(pack)
        files = {each.sha256 for each in manifest.files.values()} | {each.sha256 for each in manifest.outside.values()}
        for digest in sorted(files - {""}):
            yield from area("tiles").glob(f"{digest[:TILES_NAME]}*")
