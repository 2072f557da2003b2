"""Checks a pack's files against its manifest: full digests the first time, then size and timestamps."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from edgedecode.cache import cache_folder, keep_json, kept_json
from edgedecode.errors import CapabilityError, ManifestError

from .entries import FileEntry, OutsideFile
from .manifest import Manifest

_CHUNK = 1 << 20
_JUDGED = ""
"""Key of the `judge` verdict among the files' stamps. No file has an empty name."""


def file_sha256(path: Path, *, progress: Callable[[int], None] | None = None) -> str:
    """Hash a file in chunks. Raises ManifestError if it cannot be read. progress: called with each chunk's size."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                if progress is not None:
                    progress(len(chunk))
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()


def file_entry(path: Path, *, flushed: bool = False) -> FileEntry:
    """Return the manifest entry of a file. flushed: fsync it first."""
    if flushed:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    return FileEntry(nbytes=path.stat().st_size, sha256=file_sha256(path))


def pack_digest(manifest: Manifest) -> str:
    """Return a digest over the digests of all files of the pack. Measurements of the pack are cached by this key."""
    files = {name: entry.sha256 for name, entry in manifest.files.items()}
    outside = {name: entry.sha256 for name, entry in manifest.outside.items()}
    return hashlib.sha256(json.dumps([files, outside], sort_keys=True).encode()).hexdigest()


def models_digest(manifest: Manifest) -> str:
    """Return a digest over all models' weights: measurements that hold for any layout of the pack have this key."""
    weights = {
        role: (manifest.outside.get(entry.weights) or manifest.files[entry.weights]).sha256
        for role, entry in manifest.models.items()
    }
    return hashlib.sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()


def check_files(
    manifest: Manifest,
    root: Path,
    *,
    full: bool = False,
    progress: Callable[[int], None] | None = None,
    judge: Callable[[], None] = lambda: None,
    key: str = "",
) -> None:
    """Check every file the manifest lists, including those outside the pack.

    full: hash every file, even where its stamp is unchanged. progress: called with the number of bytes hashed.
    judge: inspects files whose digests match, and raises if they are unacceptable; skipped while all stamps and `key`
    are unchanged.

    Raises ManifestError for a file that is missing, is a link, or has the wrong size or content.
    """
    known = {} if full else _load_known(root)
    stamps = _checked(manifest, root, [*manifest.files, *manifest.outside], known=known, progress=progress)
    stamps[_JUDGED] = key
    if stamps != known:
        judge()
        _store_known(root, stamps)


def check_unchanged(manifest: Manifest, root: Path, names: Collection[str]) -> None:
    """Check some files of an open pack again. Raises CapabilityError if one has changed since."""
    try:
        _checked(manifest, root, names, known=_load_known(root))
    except ManifestError:
        raise CapabilityError("files of the pack were changed since the pack was opened: open it again") from None


def _checked(
    manifest: Manifest,
    root: Path,
    names: Collection[str],
    *,
    known: Mapping[str, str],
    progress: Callable[[int], None] | None = None,
) -> dict[str, str]:
    """Return the stamps of these files. A file is hashed when its stamp is not the known one."""
    stamps: dict[str, str] = {}
    for name in (name for name in manifest.files if name in names):
        entry = manifest.files[name]
        path = root / name
        stamps[name] = stamp = _stamp(path, name, entry)
        if known.get(name) != stamp and (found := file_sha256(path, progress=progress)) != entry.sha256:
            raise ManifestError(
                f"{path} is damaged: its sha256 is {found[:12]}…, the manifest says {entry.sha256[:12]}…; "
                f"copy or export the pack again"
            )
    for name in (name for name in manifest.outside if name in names):
        outside = manifest.outside[name]
        stamps[name] = stamp = _outside_stamp(outside)
        if known.get(name) != stamp and file_sha256(Path(outside.path), progress=progress) != outside.sha256:
            raise _outside_changed(outside, "does not have the content that was imported")
    return stamps


def _stamp(path: Path, name: str, entry: FileEntry) -> str:
    """Check presence, kind and size; return a stamp that changes with the file or with the manifest's digest."""
    try:
        for part in (path, *path.parents[: len(Path(name).parts) - 1]):
            if part.is_symlink():
                raise ManifestError(f"{part} is a link: a pack holds its own files; copy the target of the link there")
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ManifestError(f"the pack's file {path} is missing: copy or export the pack again") from None
    except OSError as error:
        raise ManifestError(f"the pack's file {path} cannot be read: {error.strerror or error}") from None
    if not path.is_file():
        raise ManifestError(f"{path} is not an ordinary file")
    if found.st_size != entry.nbytes:
        raise ManifestError(
            f"{path} has {found.st_size} bytes, the manifest says {entry.nbytes}: it is truncated or another file; "
            f"copy or export the pack again"
        )
    return _stamp_of(found, entry.sha256)


def _stamp_of(found: os.stat_result, sha256: str) -> str:
    """Return a stamp that changes with the file: mtime can be set by a program, ctime cannot."""
    places = f"{found.st_dev}:{found.st_ino}"
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{places}:{sha256}"


def _outside_stamp(outside: OutsideFile) -> str:
    """Check presence, kind and size of a file that the pack uses in place. A link is refused."""
    path = Path(outside.path)
    try:
        if path.is_symlink():
            raise _outside_changed(outside, "has become a link")
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _outside_changed(outside, "no longer exists") from None
    except OSError as error:
        raise _outside_changed(outside, f"cannot be read ({error.strerror or error})") from None
    if not path.is_file():
        raise _outside_changed(outside, "is not an ordinary file")
    if found.st_size != outside.nbytes:
        raise _outside_changed(outside, f"has {found.st_size} bytes instead of {outside.nbytes}")
    return _stamp_of(found, outside.sha256)


def _outside_changed(outside: OutsideFile, what: str) -> ManifestError:
    return ManifestError(
        f"the file {outside.path}, which the pack uses in place, has changed: it {what}; put it back, or import it "
        f"again (with --copy the pack holds its own copy)"
    )


def _known_path(root: Path) -> Path | None:
    folder = cache_folder("verified")
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:24]
    return folder / f"{name}.json" if folder is not None else None


def _load_known(root: Path) -> dict[str, str]:
    path = _known_path(root)
    try:
        return kept_json(path, dict[str, str]) if path is not None else {}
    except (OSError, ValueError):
        return {}


def _store_known(root: Path, stamps: dict[str, str]) -> None:
    path = _known_path(root)
    if path is not None:
        keep_json(path, stamps)
