"""Cache weights as tiles in a file that is built on first use and mapped, so that processes share it.

The file's key covers the content of the weights file and the matrices read from it. Its digest is checked once, later
only its size and time. If it cannot be cached, the tiles are built in memory.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from edgedecode.cache import aside, cache_folder, facts_key, keep_json, kept_json
from edgedecode.errors import ManifestError
from edgedecode.library.prepared import TILES_NAME
from edgedecode.memory.process_memory import release_pages
from edgedecode.pack.manifest import Manifest
from edgedecode.user_notices import notice, work

from ...kept_files import is_whole, record_whole
from .library import ANY_FINDING, KernelLibrary
from .products import Stored, tile_offsets

FOLDER = "tiles"
LAYOUT = 5
INSPECTION = 3
"""To be incremented when `KernelLibrary.inspect` checks for something else."""
_LONG_NBYTES = 64 * 2**20
"""From this size on, the build shows its progress."""
_WRITE_NBYTES = 2**20
_TILES, _FOUND = f".v{LAYOUT}.tiles", f".found{INSPECTION}"

Bytes = npt.NDArray[np.uint8]


def tiles_nbytes(library: KernelLibrary, stored: Sequence[Stored]) -> int:
    """Return the bytes of these matrices as tiles."""
    return tile_offsets(library, stored)[""]


def weights_digest(root: Path, weights: Path) -> str:
    """Return the SHA-256 of the weights in the pack's manifest; empty if no manifest lists them (yet)."""
    try:
        manifest = Manifest.load(root)
    except ManifestError:
        return ""
    inside = {root / name: entry.sha256 for name, entry in manifest.files.items()}
    outside = {Path(entry.path): entry.sha256 for entry in manifest.outside.values()}
    return inside.get(weights) or outside.get(weights) or ""


def load_findings(digest: str) -> dict[str, int]:
    """Return the cached inspection results of the matrices of weights with this digest."""
    path = _findings_path(digest)
    try:
        found = {} if path is None else kept_json(path, dict[str, dict[str, int]]).get(digest, {})
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if value in range(ANY_FINDING + 1)}


def keep_findings(digest: str, findings: Mapping[str, int]) -> None:
    """Store inspection results next to the tiles, unless the digest is empty."""
    if (path := _findings_path(digest)) is not None:
        keep_json(path, {digest: dict(findings)})


def _findings_path(digest: str) -> Path | None:
    folder = cache_folder(FOLDER) if digest else None
    return None if folder is None else folder / f"{digest[:32]}{_FOUND}"


def prepare_tiles(
    library: KernelLibrary, stored: Sequence[Stored], *, digest: str, release: Callable[[], None] = lambda: None
) -> Bytes:
    """Return the tiles of a weights file's matrices, mapped from the cache; built in memory if they cannot be cached.

    digest: of the weights file; empty: the file is not part of a pack, as during an export, and nothing is cached.
    release: called after each matrix, to drop the pages that were read.
    """
    folder = cache_folder(FOLDER) if digest else None
    if folder is not None:
        path = folder / f"{digest[:TILES_NAME]}-{_key(stored, digest)}{_TILES}"
        try:
            if not is_whole(path):
                _build(library, stored, path, release=release)
            return np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:  # a full or read-only disk, a file truncated by another process
            notice(f"the prepared weights cannot be cached in {folder} ({error}): they are built in memory")
    return made_in_memory(library, stored, release=release)


def made_in_memory(
    library: KernelLibrary, stored: Sequence[Stored], *, release: Callable[[], None] = lambda: None
) -> Bytes:
    """Return the tiles of matrices as an array of this process."""
    tiles = np.zeros(tiles_nbytes(library, stored), np.uint8)
    for each, start in zip(stored, tile_offsets(library, stored).values(), strict=False):
        library.prepare(each.loaded(), tiles[start : start + library.prepared_nbytes(each.matrix)])
        release()
    return tiles


def _key(stored: Sequence[Stored], digest: str) -> str:
    facts: list[object] = [LAYOUT, digest]
    for each in stored:
        matrix = each.matrix
        form = (
            matrix.packed.shape,
            matrix.bits,
            matrix.block,
            matrix.wide_scales,
            matrix.minima is not None,
            matrix.parts,
            matrix.bfloat16,
            matrix.table,
        )
        facts.append((each.offsets, *form))
    return facts_key(*facts)


def _build(library: KernelLibrary, stored: Sequence[Stored], path: Path, *, release: Callable[[], None]) -> None:
    nbytes = tiles_nbytes(library, stored)
    bar: AbstractContextManager[Callable[[float], None]] = nullcontext(lambda amount: None)
    if nbytes > _LONG_NBYTES:
        notice(f"preparing {nbytes / 1e6:.0f} MB of weights once for this machine's kernels")
        bar = work("preparing weights, MB", round(nbytes / 1e6))
    _remove_stale(path.parent)
    with aside(path) as fresh, bar as advance:
        digest = write_tiles(library, stored, fresh, release=release, advance=advance)
    release_pages()  # of matrices that were computed
    record_whole(path, digest)


def write_tiles(
    library: KernelLibrary,
    stored: Sequence[Stored],
    path: Path,
    *,
    release: Callable[[], None] = lambda: None,
    advance: Callable[[float], None] = lambda megabytes: None,
) -> str:
    """Write the tiles of matrices to a file, the same on every processor, and return its SHA-256. Raises OSError."""
    digest = sha256()
    with path.open("wb", buffering=_WRITE_NBYTES) as file:
        for each in stored:
            tiles = made_in_memory(library, [each], release=release)
            digest.update(tiles.data)
            _write_aligned(file, tiles.data)
            advance(tiles.nbytes / 1e6)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _write_aligned(file: BinaryIO, data: memoryview) -> None:
    """Write so that the buffer is always full, and begins at a multiple of its size, when it goes to the file.

    The page cache then holds the file in large pages: after writes of the matrices' own sizes, a pass over 8 rows of
    SmolLM2 took 1.12 of the time (Linux 6.18, ext4).
    """
    written = 0
    while written < len(data):
        room = _WRITE_NBYTES - file.tell() % _WRITE_NBYTES
        written += file.write(data[written : written + room])


def _remove_stale(folder: Path) -> None:
    """Remove files of edgedecode versions with another layout."""
    others = [path for path in folder.glob("*.tiles") if not path.name.endswith(_TILES)]
    others += [path for path in folder.glob("*.found*") if not path.name.endswith(_FOUND)]
    for path in others:
        with suppress(OSError):
            path.unlink()
            path.with_suffix(".json").unlink(missing_ok=True)
