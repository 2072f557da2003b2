"""Packs in the cache of models that lie elsewhere: of GGUF files, which the export makes, and of folders of links."""

import re
from collections.abc import Callable
from contextlib import suppress
from gc import collect
from glob import escape
from importlib.metadata import entry_points
from pathlib import Path
from shutil import rmtree

from edgedecode.cache import area, facts_key, unwritable
from edgedecode.errors import ManifestError
from edgedecode.memory.process_memory import release_pages
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.new_folder import link_or_copy, work_folder

_PACKERS = "edgedecode.packers"
"""Entry points: what makes a pack of a model's file, by its format."""
_LAYOUT = 5
"""To be incremented when packs of files change."""
_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")


def file_pack(path: Path, *, draft: Path | None = None, title: str = "") -> Path:
    """Return the folder of a file's pack, or of a target's and a draft's. Made at first use, and after a change.

    title: the pack's name, where the file is named by a digest. Raises ManifestError for a file of which no pack can
    be made.
    """
    folder = file_pack_folder(path, draft=draft)
    if _is_made(folder):
        return folder
    (packer,) = entry_points(group=_PACKERS, name="gguf")  # the export registers itself, as the core is below it
    make: Callable[[Path, Path | None, Path, str], None] = packer.load()
    try:
        name = title if _DIGEST.fullmatch(path.name) else path.stem
        make(path.absolute(), draft and draft.absolute(), folder, name)
    except ManifestError:
        if not _is_made(folder):  # else another process made it at the same time
            raise
    collect()  # the vocabulary, as the importer read it: its objects refer to each other
    release_pages()
    for other in set(folder.parent.glob(f"{escape(folder.name.rpartition('-')[0])}-*")) - {folder}:
        rmtree(other, ignore_errors=True)  # of the files before they changed
    return folder


def file_pack_folder(path: Path, *, draft: Path | None = None) -> Path:
    """Return where the pack of these files is, once it is made. Raises ManifestError for files that cannot be read."""
    paths = [each.absolute() for each in (path, draft) if each is not None]
    name = f"{path.stem[:60]}-{facts_key(*paths)[:8]}"
    return area("files") / f"{name}-{facts_key(_LAYOUT, *map(_state, paths))[:12]}"


def without_links(root: Path) -> Path:
    """Return a pack of the hub's cache, whose files are links to its blobs, as one of hard links, or copies.

    A pack may not contain links, and ONNX Runtime refuses weights behind one. Links to elsewhere are left to the gate,
    which refuses them. Raises ManifestError.
    """
    files = {path: path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file()}
    blobs = (root / ".." / ".." / "blobs").resolve()
    if not all(blobs in path.resolve().parents for path in files):
        return root
    folder = area("files") / f"links-{facts_key(root.absolute(), *map(_state, files))}"
    if _is_made(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(folder.parent, name=folder.name) as fresh:
            for path, name in files.items():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(path.resolve(), fresh / name)
            fresh.rename(folder)
    except OSError as error:
        if not _is_made(folder):  # else another process made it at the same time
            raise ManifestError(unwritable(folder.parent, error)) from None
    return folder


def _state(path: Path) -> tuple[object, ...]:
    try:
        facts = path.stat()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror or error}") from None
    return path.resolve(), facts.st_size, facts.st_mtime_ns, facts.st_ino


def _is_made(folder: Path) -> bool:
    with suppress(ManifestError):
        return bool(Manifest.load(folder).models)
    return False
