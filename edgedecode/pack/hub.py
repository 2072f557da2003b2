"""Finds a pack by folder, by hub id, or the bundled one. Talks to the hub only when a name is not a folder.

A download appears whole or not at all: after it, exactly what the new manifest lists lies there.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from edgedecode.cache import area, aside, cache_folder
from edgedecode.errors import ManifestError
from edgedecode.locks import FOLDER, wait_for_lock
from edgedecode.user_notices import notice

from .gate import check_pack
from .integrity import check_files
from .manifest import MANIFEST_NAME, Manifest
from .pack_lock import changing

__all__ = ["BUNDLED_PACK", "find_pack"]

BUNDLED_PACK = Path(__file__).parents[1] / "packs" / "demo"

_TIMEOUT = 20.0
_NOTES = Path(".cache", "huggingface")
"""What the hub's client keeps beside the files."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PACK_FILES = [
    "edgedecode.json",
    "*.json",
    "*.jinja",
    "*.onnx",
    "*.ids",
    "*.gguf",
    "weights.bin",
    "*/weights.bin",
    "licenses/*",
]


def find_pack(name: str | Path | None) -> Path:
    """Return the folder of the pack `name`: a folder, a hub id (downloaded, or from the cache offline), None: bundled.

    Raises ManifestError with one line that says what was tried.
    """
    if name is None:
        if not BUNDLED_PACK.is_dir():
            raise ManifestError("this installation carries no bundled pack: give one with -m, or run `make pack`")
        return BUNDLED_PACK
    if name == "":
        raise ManifestError("the name of the pack is empty: give a folder or a hub id")
    folder = Path(name)
    if folder.exists() or isinstance(name, Path) or not _HUB_ID.fullmatch(name):
        if not folder.exists():
            raise ManifestError(f"there is no folder {str(name)!r}, and it is not a hub id (owner/name)")
        return folder
    return _from_hub(name)


def _downloads() -> Path:
    return area("packs")


def _from_hub(name: str) -> Path:
    """Return the folder of a hub pack, brought up to date; where that fails, as it was, with a notice."""
    folder = _downloads() / name.replace("/", "--")
    reason = ""
    try:
        _bring_up_to_date(folder, name)
    except ImportError:
        raise ManifestError(
            f"{name!r} is not a folder; hub ids need huggingface_hub: pip install huggingface_hub"
        ) from None
    except Exception as error:  # the hub raises requests', httpx's and its own kinds alike
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if _beside(folder, "new").exists():  # complete, but the process was killed before it was renamed
        with _alone(folder):
            _put_in_place(folder)
    if not folder.is_dir():
        raise ManifestError(
            f"{name!r} is not a folder here, and the hub did not give it ({reason[:160]}); "
            f"check the name and the connection, or give a folder"
        )
    if reason:
        notice(f"the hub did not give the newest {name} ({reason[:160]}): the copy that is here is used")
    return folder


def _bring_up_to_date(folder: Path, name: str) -> None:
    """Download the newest commit where another one, or none, is in `folder`. Raises whatever the hub's client does."""
    commit = _newest_commit(name)
    if commit == _commit_of(folder) and not _beside(folder, "old").exists():
        return
    with _alone(folder):
        _put_in_place(folder)
        if commit != _commit_of(folder):  # else another process has just downloaded it
            _download(name, commit, folder)


def _newest_commit(name: str) -> str:
    from huggingface_hub import HfApi

    return str(HfApi().model_info(name, timeout=_TIMEOUT).sha)


def _commit_of(folder: Path) -> str:
    """Return the commit that a download is, as the hub's own notes beside it say; empty: they do not."""
    try:
        notes = folder / _NOTES / "download" / f"{MANIFEST_NAME}.metadata"
        return notes.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def _alone(folder: Path) -> AbstractContextManager[object]:
    """Hold what is downloaded to `folder`: one process at a time."""
    with suppress(OSError):
        place = cache_folder(FOLDER)
        lock = (
            None
            if place is None
            else wait_for_lock(
                place / f"download-{folder.name}",
                seconds=math.inf,
                waiting=f"waiting for another process that downloads {folder.name.replace('--', '/')}",
            )
        )
        return lock or nullcontext()
    return nullcontext()


def _download(name: str, commit: str, folder: Path) -> None:
    """Download a commit beside `folder`, which stays as it is until the new one is whole; then put it in its place.

    It goes to a separate folder: the hub's cache consists of links, which a pack may not contain. Files of the
    old folder are not downloaded again, and an interrupted download is resumed.
    """
    part = _beside(folder, "part")
    part.mkdir(parents=True, exist_ok=True)
    if folder.is_dir():
        _copy_missing(folder, part)
    try:
        _fill(part, name, commit)
    except ManifestError:
        if not _remove_damaged(part):
            raise
        _fill(part, name, commit)
    part.rename(_beside(folder, "new"))
    _put_in_place(folder)


def _fill(part: Path, name: str, commit: str) -> None:
    """Download what is not in `part` yet. Raises ManifestError unless it is a pack then that may be opened."""
    from huggingface_hub import snapshot_download

    snapshot_download(name, revision=commit, allow_patterns=_PACK_FILES, local_dir=part)
    _keep_only({*Manifest.load(part).files, MANIFEST_NAME}, part)
    check_pack(part, full=True)


def _remove_damaged(part: Path) -> bool:
    """Remove files whose content is not what was published: the hub's client trusts its own notes of what is there."""
    damaged = []
    try:
        manifest = Manifest.load(part)
        for name, entry in manifest.files.items():
            with suppress(ManifestError):
                check_files(replace(manifest, files={name: entry}, outside={}), part, full=True)
                continue
            damaged.append(name)
    except ManifestError:
        damaged.append(MANIFEST_NAME)
    for name in damaged:
        for path in (part / name, part / _NOTES / "download" / f"{name}.metadata"):
            path.unlink(missing_ok=True)
    return bool(damaged)


def _put_in_place(folder: Path) -> None:
    """Replace `folder` by a new one that is whole, if there is one; whatever interrupted it before."""
    new, old = _beside(folder, "new"), _beside(folder, "old")
    if new.is_dir():
        with changing(folder):  # wait until current openings have finished
            if folder.is_dir():
                shutil.rmtree(old, ignore_errors=True)
                folder.rename(old)
            new.rename(folder)
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _copy_missing(folder: Path, part: Path) -> None:
    """Copy what is in `folder` and not in `part`: the hub's client writes into files, so that no links will do."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = part / path.relative_to(folder)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with aside(place) as fresh:
                shutil.copy2(path, fresh)


def _keep_only(names: Collection[str], part: Path) -> None:
    """Remove what the manifest does not list: an older commit's files, and what merely looks like a pack's."""
    for path in sorted(part.rglob("*"), reverse=True):  # what is in a folder before the folder
        name = path.relative_to(part)
        if name.parts[0] == _NOTES.parts[0] or name.as_posix() in names:
            continue
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # it holds something that is listed
                path.rmdir()
        else:
            path.unlink()
