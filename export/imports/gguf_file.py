"""Makes the pack of a GGUF file that is used without an import, in the cache: the file itself stays where it is."""

from __future__ import annotations

from contextlib import suppress
from glob import escape
from pathlib import Path
from shutil import rmtree

from edgedecode.cache import area, facts_key
from edgedecode.errors import ExportError, ManifestError
from edgedecode.pack.manifest import Manifest

from ..stages import Stages
from .gguf_import import import_gguf_pair
from .imported_pack import ImportRequest

__all__ = ["pack_of_gguf"]

_LAYOUT = 1
"""To be incremented when packs of files change."""


def pack_of_gguf(path: Path) -> Path:
    """Return the folder of the file's pack. It is created on first use, and again after the file changes.

    Raises ManifestError for a file of which no pack can be made.
    """
    path = path.absolute()
    try:
        facts = path.stat()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror or error}") from None
    name = f"{path.stem[:60]}-{facts_key(str(path))[:8]}"
    state = facts_key(_LAYOUT, path.resolve(), facts.st_size, facts.st_mtime_ns, facts.st_ino)[:12]
    folder = area("files") / f"{name}-{state}"
    if not _is_made(folder):
        _make(path, folder)
        for other in set(folder.parent.glob(f"{escape(name)}-*")) - {folder}:  # of the file before it changed
            rmtree(other, ignore_errors=True)
    return folder


def _make(path: Path, folder: Path) -> None:
    request = ImportRequest(target=path, draft=None, out=folder, name=path.stem, noise_positions=0, checked=False)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        import_gguf_pair(request, Stages())
    except OSError as error:
        raise ManifestError(f"{folder.parent} cannot be written ({error.strerror or error}): make room") from None
    except ExportError as error:
        if not _is_made(folder):  # else another process made it at the same time
            raise ManifestError(str(error)) from None


def _is_made(folder: Path) -> bool:
    with suppress(ManifestError):
        return bool(Manifest.load(folder).models)
    return False
