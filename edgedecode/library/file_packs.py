"""Packs in the cache of models that lie elsewhere: of GGUF files, which the export makes, and of folders of links."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from importlib.metadata import entry_points
from pathlib import Path
from shutil import copyfile, rmtree

from edgedecode.cache import area, facts_key
from edgedecode.errors import ManifestError
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest

__all__ = ["file_pack", "file_pack_folder", "remove_file_packs", "without_links"]

_PACKERS = "edgedecode.packers"
"""Entry points: what makes a pack of a model's file, by its format."""
_LAYOUT = 2
"""To be incremented when packs of files change."""
_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")


def file_pack(path: Path, *, draft: Path | None = None, title: str = "") -> Path:
    """Return the folder of a file's pack, or of a target's and a draft's. Made at first use, and after a change.

    title: the pack's name, where the file is named by a digest. Raises ManifestError for a file of which no pack can
    be made.
    """
    folder = file_pack_folder(path, draft=draft)
    if not _is_made(folder):
        _make(path.absolute(), draft and draft.absolute(), folder, title if _DIGEST.fullmatch(path.name) else path.stem)
        for other in set(folder.parent.glob(f"{escape(folder.name.rpartition('-')[0])}-*")) - {folder}:
            rmtree(other, ignore_errors=True)  # of the files before they changed
    return folder


def file_pack_folder(path: Path, *, draft: Path | None = None) -> Path:
    """Return where the pack of these files is, once it is made. Raises ManifestError for files that cannot be read."""
    paths = [path.absolute(), *([draft.absolute()] if draft is not None else [])]
    name = f"{_stem(path)}-{facts_key(*paths)[:8]}"
    state = facts_key(_LAYOUT, *(fact for each in paths for fact in _state(each)))[:12]
    return area("files") / f"{name}-{state}"


def remove_file_packs(path: Path) -> None:
    """Remove the packs of a file, also those with a draft."""
    for folder in area("files").glob(f"{escape(_stem(path))}-*"):
        with suppress(ManifestError):
            if any(Path(each.path) == path.resolve() for each in Manifest.load(folder).outside.values()):
                rmtree(folder, ignore_errors=True)


def without_links(root: Path) -> Path:
    """Return a pack whose files are links, as in the hub's cache, as one of plain files: hard links, or copies.

    A pack may not contain links, and ONNX Runtime refuses weights behind one. Raises ManifestError.
    """
    if not (root / MANIFEST_NAME).is_symlink():
        return root
    files = {path.relative_to(root): path.resolve() for path in root.rglob("*") if path.is_file()}
    states = sorted((name.as_posix(), *_state(path)) for name, path in files.items())
    folder = area("files") / f"links-{facts_key(root.absolute())[:8]}-{facts_key(_LAYOUT, *states)[:12]}"
    if not _is_made(folder):
        fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            for name, path in files.items():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                _link(path, fresh / name)
            fresh.rename(folder)
        except OSError as error:
            if not _is_made(folder):  # else another process made it at the same time
                reason = error.strerror or error
                raise ManifestError(f"{root} cannot be linked to {folder.parent} ({reason}): make room") from None
        finally:
            rmtree(fresh, ignore_errors=True)
    return folder


def _link(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:  # another disk, or a file system without hard links
        copyfile(path, name)


def _stem(path: Path) -> str:
    return path.stem[:60]


def _state(path: Path) -> tuple[object, ...]:
    try:
        facts = path.stat()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror or error}") from None
    return path.resolve(), facts.st_size, facts.st_mtime_ns, facts.st_ino


def _make(path: Path, draft: Path | None, folder: Path, title: str) -> None:
    """Have the export make the pack: it registers itself, as the core is below it."""
    for entry in entry_points(group=_PACKERS, name="gguf"):
        make: Callable[[Path, Path | None, Path, str], None] = entry.load()
        try:
            make(path, draft, folder, title)
        except ManifestError:
            if not _is_made(folder):  # else another process made it at the same time
                raise
        return
    raise ManifestError(f"this installation cannot import {path}: install edgedecode again")


def _is_made(folder: Path) -> bool:
    with suppress(ManifestError):
        return bool(Manifest.load(folder).models)
    return False
