"""What edgedecode keeps in the cache for a model: the pack of its file, and weights prepared for the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgedecode.cache import area
from edgedecode.errors import ManifestError
from edgedecode.pack.manifest import Manifest

from .file_packs import file_pack_folder, remove_file_packs
from .stored import StoredModel

__all__ = ["TILES_NAME", "is_prepared", "pack_of", "remove_prepared"]

TILES_NAME = 16
"""The digits of a weights file's digest that begin the names of its tiles, and of the findings about it."""


def pack_of(model: StoredModel) -> Path:
    """Return the folder of the model's pack, which need not exist."""
    with suppress(ManifestError):
        return model.path if model.path.is_dir() else file_pack_folder(model.path)
    return model.path


def is_prepared(model: StoredModel) -> bool:
    """Return whether weights of the model are prepared for this machine's kernels."""
    return any(path.suffix == ".tiles" for path in _tiles(pack_of(model)))


def remove_prepared(model: StoredModel) -> int:
    """Remove what the cache holds for a model, and return the bytes."""
    nbytes = 0
    for path in list(_tiles(pack_of(model))):
        with suppress(OSError):
            nbytes += path.stat().st_size
            path.unlink()
    if model.path.is_file():
        remove_file_packs(model.path)
    return nbytes


def _tiles(pack: Path) -> Iterator[Path]:
    with suppress(ManifestError):
        manifest = Manifest.load(pack)
        files = {each.sha256 for each in manifest.files.values()} | {each.sha256 for each in manifest.outside.values()}
        for digest in sorted(files - {""}):
            yield from area("tiles").glob(f"{digest[:TILES_NAME]}*")
