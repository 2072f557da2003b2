"""Weights as tiles: a file in the user's cache, made at first use, mapped and so shared between processes.

A file belongs to the content of one weights file and to the matrices read from it. Its own digest is checked once, its
size and time afterwards. Where it cannot be kept, the tiles are made in memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import time

import numpy as np
import numpy.typing as npt

from edgedecode.digests import file_sha256
from edgedecode.errors import ManifestError
from edgedecode.folders import cache_folder, keep_json
from edgedecode.manifest import Manifest
from edgedecode.notices import notice

from .library import KernelLibrary
from .products import Stored

__all__ = ["FOLDER", "Tiles", "prepare_tiles", "tiles_nbytes", "weights_digest"]

FOLDER = "tiles"
LAYOUT = 1
_ALIGNMENT = 4096
_LONG_NBYTES = 64 * 2**20
"""Making more than this takes long enough to say so."""
_MAKING = ".making"
_STALE_SECONDS = 3600

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of each matrix by its name, views of one mapped file or of memory."""

    arrays: dict[str, Bytes]
    mapped: bool


def tiles_nbytes(library: KernelLibrary, stored: Iterable[Stored]) -> int:
    """Return the bytes of these matrices as tiles, each at the start of a page."""
    return sum(_padded(library.prepared_nbytes(each.matrix)) for each in stored)


def weights_digest(root: Path, weights: Path) -> str:
    """Return the weights' sha256: the manifest's, which the pack's check has compared, else the file's own."""
    try:
        manifest = Manifest.load(root)
    except ManifestError:
        return file_sha256(weights)
    inside = {root / name: entry.sha256 for name, entry in manifest.files.items()}
    outside = {Path(entry.path): entry.sha256 for entry in manifest.outside.values()}
    return inside.get(weights) or outside.get(weights) or file_sha256(weights)


def prepare_tiles(
    library: KernelLibrary, stored: Sequence[Stored], *, digest: str, release: Callable[[], None] = lambda: None
) -> Tiles:
    """Return the tiles of matrices: those of the weights file from the cache, those that the graph holds in memory.

    digest: the weights file's content. release: called after each matrix, to drop the pages that were read.
    """
    kept = sorted((each for each in stored if each.offsets is not None), key=lambda each: each.name)
    own = [each for each in stored if each.offsets is None]
    arrays = _views(library, own, np.empty(tiles_nbytes(library, own), np.uint8), fill=True)
    folder = cache_folder(FOLDER)
    data = None
    if folder is not None and kept:
        data = _mapped(library, kept, folder / f"{_key(kept, digest)}.tiles", release=release)
    if data is None:
        data = np.empty(tiles_nbytes(library, kept), np.uint8)
        return Tiles(arrays | _views(library, kept, data, fill=True), mapped=False)
    return Tiles(arrays | _views(library, kept, data), mapped=True)


def _key(stored: Sequence[Stored], digest: str) -> str:
    facts = [str(LAYOUT), digest]
    for each in stored:
        matrix = each.matrix
        facts.append(f"{each.offsets} {matrix.packed.shape} {matrix.bits} {matrix.block} {matrix.wide_scales}")
    return sha256("\n".join(facts).encode()).hexdigest()[:32]


def _mapped(
    library: KernelLibrary, stored: Sequence[Stored], path: Path, *, release: Callable[[], None]
) -> Bytes | None:
    """Map the file, made first where it is missing or damaged; None where it cannot be kept."""
    nbytes = tiles_nbytes(library, stored)
    try:
        if not _is_sound(path, nbytes):
            _make(library, stored, path, release=release)
        return np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:  # a full or read-only disk; a file that another program has cut off
        notice(f"the prepared weights cannot be kept in {path.parent} ({error}): they are made in memory")
        return None


def _is_sound(path: Path, nbytes: int) -> bool:
    record = path.with_suffix(".json")
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        stamp = _stamp(path)
        if known["stamp"] == stamp:
            return True
        if path.stat().st_size == nbytes and file_sha256(path) == known["sha256"]:
            keep_json(record, {"sha256": known["sha256"], "stamp": stamp})
            return True
        notice(f"the prepared weights {path} are damaged and are made again")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, ManifestError):
        notice(f"the prepared weights {path} cannot be read and are made again")
    return False


def _make(library: KernelLibrary, stored: Sequence[Stored], path: Path, *, release: Callable[[], None]) -> None:
    """Write the file under another name and rename it: two processes that make it at once do no harm."""
    if (nbytes := tiles_nbytes(library, stored)) > _LONG_NBYTES:
        notice(f"preparing {nbytes / 1e6:.0f} MB of weights for this machine's kernels, once")
    _remove_stale(path.parent)
    fresh = path.with_suffix(f".{os.getpid()}{_MAKING}")
    digest = sha256()
    try:
        with fresh.open("wb") as file:
            for each in stored:
                tiles = np.zeros(_padded(library.prepared_nbytes(each.matrix)), np.uint8)
                library.prepare(each.matrix, tiles[: library.prepared_nbytes(each.matrix)])
                digest.update(tiles)
                file.write(tiles)
                release()
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    keep_json(path.with_suffix(".json"), {"sha256": digest.hexdigest(), "stamp": _stamp(path)})


def _remove_stale(folder: Path) -> None:
    """Remove what crashed writers have left, older than an hour."""
    for path in folder.glob(f"*{_MAKING}"):
        with suppress(OSError):
            if path.stat().st_mtime < time() - _STALE_SECONDS:
                path.unlink()


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino if sys.platform != 'win32' else 0}"


def _views(library: KernelLibrary, stored: Iterable[Stored], data: Bytes, *, fill: bool = False) -> dict[str, Bytes]:
    found, start = {}, 0
    for each in stored:
        nbytes = library.prepared_nbytes(each.matrix)
        found[each.name] = data[start : start + nbytes]
        if fill:
            library.prepare(each.matrix, found[each.name])
        start += _padded(nbytes)
    return found


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
