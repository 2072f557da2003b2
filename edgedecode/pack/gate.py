"""Validates a pack before native code opens it: its folder listing, its graphs, and whether both match the manifest.

A pack is untrusted input. The files are parsed here in Python, within size bounds; the result is cached with the files'
digests.
"""

import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath

from edgedecode.cache import area
from edgedecode.errors import ManifestError

from .entries import ADAPTERS, DRAFT_FOLDERS, HEAD, HEAD_NAMES, NPU_FOLDER, STATIC_PREFIX, TRIM_NAMES
from .integrity import check_files
from .manifest import MANIFEST_NAME, Manifest

_GATE = 4
"""Version of the checks; increase it when they change, so that cached results no longer count."""
_IGNORED = frozenset({".gitattributes", ".gitignore", ".git", ".cache"})
"""Files of repositories and downloads next to the manifest. No pack entry can refer to them."""
_TEXTS = ("LICENSE", "NOTICE", "README")
_TEXT_SUFFIXES = ("", ".md", ".pdf", ".rst", ".txt")
"""Prefixes and suffixes of documents allowed next to the manifest; nothing reads them."""
_SYSTEM, _SYSTEM_PREFIXES = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"}), ("._", ".nfs")
"""Files that operating systems leave in any folder."""
_WORK = (".trim-", f"{MANIFEST_NAME}.", STATIC_PREFIX)
"""Prefixes of files of a pack change that is not committed yet."""
_MADE_LATER = (ADAPTERS, HEAD, NPU_FOLDER)
"""Folders that are added to finished packs."""


def check_pack(root: Path, *, full: bool = False, progress: Callable[[int], None] | None = None) -> Manifest:
    """Validate the pack at `root` and return its manifest. Raises ManifestError, one line.

    full, progress: as in `check_files`.
    """
    manifest = Manifest.load(root)
    if manifest.outside and is_downloaded(root):
        raise ManifestError(
            f"the pack {root} was downloaded and names files outside itself, such as "
            f"{next(iter(manifest.outside.values())).path}: refused; its author should import with --copy"
        )
    check_listing(manifest, root)

    def judge() -> None:
        from .model_checks import check_models  # late: a pack that was checked before opens faster

        check_models(manifest, root)

    key = sha256(f"{_GATE} {manifest!r}".encode("utf-8", "surrogatepass")).hexdigest()
    try:
        check_files(manifest, root, full=full, progress=progress, judge=judge, key=key)
    except ManifestError as error:
        if not is_downloaded(root):
            raise
        raise ManifestError(f"{error}; run `edgedecode cache clear --packs`, and it is downloaded again") from None
    return manifest


def is_downloaded(root: Path) -> bool:
    """Return whether the pack at `root` came from the hub: its manifest is then untrusted."""
    return root.resolve().is_relative_to(area("packs").resolve())


def check_listing(manifest: Manifest, root: Path) -> None:
    """Raise ManifestError for any file in the pack's folders that its manifest does not list.

    Temporary files of an unfinished or crashed pack change, and repository files next to the manifest, are ignored:
    no pack entry refers to them. A listed file may have hard links, because its digest pins its content.
    """
    listed = {*manifest.files, MANIFEST_NAME}
    folders = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    unfinished = {PurePosixPath(name).name for names in (HEAD_NAMES, *TRIM_NAMES.values()) for name in names}
    unused = _unused(manifest)
    for name, entry in _entries(root, folders):
        path = root / name
        if entry.is_symlink():
            raise ManifestError(f"{path} is a link: a pack holds its own files; copy the target of the link there")
        if entry.is_dir(follow_symlinks=False):
            known = name in folders or name in _IGNORED or name in DRAFT_FOLDERS
            if known or PurePosixPath(name).parts[0] in _MADE_LATER:
                continue  # a crash while they are added or removed leaves their folders
        elif not entry.is_file(follow_symlinks=False):
            raise ManifestError(f"{path} is not an ordinary file: remove it")
        elif name in listed or _is_ignored(name) or entry.name.startswith(_WORK) or entry.name in unfinished:
            continue
        raise ManifestError(f"{path} is not listed in the pack's manifest: move it elsewhere")
    if unused:
        raise ManifestError(
            f"{root / unused[0]} is listed, but no model refers to it: export the pack again, {manifest.upgrade}"
        )


def _entries(root: Path, folders: set[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the entries of the pack's folders with their pack-relative names; links are not followed."""
    waiting = ["."]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                name = entry.name if folder == "." else f"{folder}/{entry.name}"
                yield name, entry
                if name in folders and entry.is_dir(follow_symlinks=False):
                    waiting.append(name)


def _is_ignored(name: str) -> bool:
    path = PurePosixPath(name)
    if path.name in _SYSTEM or path.name.startswith(_SYSTEM_PREFIXES) or name in _IGNORED:
        return True
    return len(path.parts) == 1 and name.startswith(_TEXTS) and path.suffix.lower() in _TEXT_SUFFIXES


def _unused(manifest: Manifest) -> list[str]:
    """Return files in graph folders that no model refers to: an engine might pick them up there."""
    graphs = (name for entry in manifest.models.values() for graph in entry.graphs.values() for name in graph.files)
    folders = {PurePosixPath(file).parent for file in graphs} - {PurePosixPath()}
    return sorted(name for name in {*manifest.files} - manifest.named() if PurePosixPath(name).parent in folders)
