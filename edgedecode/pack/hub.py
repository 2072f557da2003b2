"""Finds a pack by folder or hub id, or the bundled one. Contacts the hub only when the name is not a folder.

A download is atomic: afterwards the folder holds exactly the files of the new manifest.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from glob import escape
from importlib.metadata import entry_points
from pathlib import Path

from edgedecode.cache import area, aside, cache_folder
from edgedecode.errors import ManifestError
from edgedecode.locks import FOLDER, wait_for_lock
from edgedecode.user_notices import notice

from .gate import check_pack
from .integrity import check_files
from .manifest import MANIFEST_NAME, Manifest
from .pack_lock import changing

__all__ = ["BUNDLED_PACK", "could_be_pack", "find_pack", "names_pack"]

BUNDLED_PACK = Path(__file__).parents[1] / "packs" / "demo"

_TIMEOUT = 20.0
_HUB_METADATA = Path(".cache", "huggingface")
"""Metadata that huggingface_hub stores next to the files."""
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_PATH = re.compile(r"(\.\.?|~|[A-Za-z]:)[/\\]|/[^/\s]+/")
"""How a path begins that is no hub id. One slash alone begins a command of a chat."""
_BUNDLED = "demo"
"""The bundled pack's name, unless the current folder has a pack of this name."""
_GGUF = b"GGUF"
_PACKERS = "edgedecode.packers"
"""Entry points: what makes a pack of a model's file, by its format."""
_MODEL_FILES = (".gguf", ".onnx", ".safetensors")


def find_pack(name: str | Path | None) -> Path:
    """Return the folder of the pack `name`: a folder, a GGUF file, or a hub id (downloaded, or cached when offline).

    None, `demo`: the bundled pack. Raises ManifestError with one line that says what was tried.
    """
    if name is None or (str(name) == _BUNDLED and not (Path(name) / MANIFEST_NAME).is_file()):
        if not BUNDLED_PACK.is_dir():
            raise ManifestError("this installation has no bundled pack: give one with -m, or run `make pack`")
        return BUNDLED_PACK
    if name == "":
        raise ManifestError("the name of the pack is empty: give a folder or a hub id")
    folder = _expanded(name)
    if _is_gguf(folder):
        return _of_file(folder)
    if folder.exists() or isinstance(name, Path) or not _is_hub_id(name):
        if not folder.exists():
            hub = "" if _is_path(str(name)) else ", and it is not a hub id (owner/name)"
            what = "file" if folder.suffix in _MODEL_FILES else "folder"
            raise ManifestError(f"there is no {what} {str(name)!r}{hub}")
        return folder
    return _from_hub(name)


def names_pack(word: str) -> bool:
    """Return whether a word alone means a pack or a model: `demo`, a hub id, one that is here, or a path."""
    if word == _BUNDLED or _is_hub_id(word) or (_is_path(word) and not re.search(r"\s", word)):
        return True
    with suppress(OSError):  # a long text is no file name
        return _is_gguf(_expanded(word)) or any(
            (_expanded(word) / name).is_file() for name in (MANIFEST_NAME, "config.json")
        )
    return False


def could_be_pack(word: str) -> bool:
    """Return whether a word may mean a pack where one is expected: also any folder, hub id or path."""
    if names_pack(word) or re.fullmatch(r"\S*/\S*", word):
        return True
    with suppress(OSError):
        return _expanded(word).is_dir()
    return False


def _is_path(word: str) -> bool:
    return bool(_PATH.match(word)) or word.endswith(_MODEL_FILES)


def _is_gguf(path: Path) -> bool:
    if path.suffix == ".gguf" or not path.is_file():
        return path.is_file()
    with path.open("rb") as file:
        return file.read(len(_GGUF)) == _GGUF


def _of_file(path: Path) -> Path:
    """Return the folder of a GGUF file's pack, which the import makes: it registers itself, as the core is below it."""
    for entry in entry_points(group=_PACKERS, name="gguf"):
        make: Callable[[Path], Path] = entry.load()
        return make(path)
    raise ManifestError(f"this installation cannot import {path}: install edgedecode again")


def _is_hub_id(name: str) -> bool:
    return bool(_HUB_ID.fullmatch(name)) and not _is_path(name)


def _expanded(name: str | Path) -> Path:
    """Replace a leading ~, which a shell leaves in place after `=`, by the home folder."""
    with suppress(RuntimeError):  # there is no home
        return Path(name).expanduser()
    return Path(name)


def _downloads() -> Path:
    return area("packs")


def _from_hub(name: str) -> Path:
    """Return the folder of a hub pack, updated; if the update fails, the cached copy, with a notice."""
    folder = _downloads() / name.replace("/", "--")
    reason = ""
    try:
        _update(folder, name)
    except ImportError:
        raise ManifestError(
            f"{name!r} is not a folder; hub ids need huggingface_hub: pip install huggingface_hub"
        ) from None
    except Exception as error:  # huggingface_hub raises errors of requests, of httpx and of its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if _sibling(folder, "new").exists():  # complete, but the process was killed before the rename
        with _download_lock(folder):
            _swap_in(folder)
    if not folder.is_dir():
        raise ManifestError(
            f"{name!r} is not a folder here, and could not be downloaded from the hub ({reason[:160]}); "
            f"check the name and the connection, or give a folder"
        )
    if reason:
        notice(f"{name} could not be updated from the hub ({reason[:160]}): using the downloaded copy")
    return folder


def _update(folder: Path, name: str) -> None:
    """Download the latest commit unless `folder` already holds it. Raises whatever huggingface_hub raises."""
    commit = _latest_commit(name)
    if commit == _commit_of(folder) and not _sibling(folder, "old").exists():
        return
    with _download_lock(folder):
        _swap_in(folder)
        if commit != _commit_of(folder):  # another process may have downloaded it in the meantime
            _download(name, commit, folder)


def _latest_commit(name: str) -> str:
    from huggingface_hub import HfApi

    return str(HfApi().model_info(name, timeout=_TIMEOUT).sha)


def _commit_of(folder: Path) -> str:
    """Return the commit of a download, from huggingface_hub's metadata; empty: unknown."""
    try:
        metadata = folder / _HUB_METADATA / "download" / f"{MANIFEST_NAME}.metadata"
        return metadata.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def _download_lock(folder: Path) -> AbstractContextManager[object]:
    """Return a lock that lets one process at a time download to `folder`; no lock where the system has none."""
    with suppress(OSError):
        locks = cache_folder(FOLDER)
        lock = (
            None
            if locks is None
            else wait_for_lock(
                locks / f"download-{folder.name}",
                seconds=math.inf,
                waiting=f"waiting for another process that downloads {folder.name.replace('--', '/')}",
            )
        )
        return lock or nullcontext()
    return nullcontext()


def _download(name: str, commit: str, folder: Path) -> None:
    """Download a commit to a folder next to `folder`, and replace `folder` once the download is complete.

    huggingface_hub's own cache cannot be used: it consists of links, which a pack may not contain. Unchanged files
    are copied from the old folder, and an interrupted download is resumed.
    """
    part = _sibling(folder, "part")
    part.mkdir(parents=True, exist_ok=True)
    if folder.is_dir():
        _copy_missing(folder, part)
    try:
        _complete(part, name, commit)
    except ManifestError:
        if not _remove_damaged(part):
            raise
        _complete(part, name, commit)
    part.rename(_sibling(folder, "new"))
    _swap_in(folder)


def _complete(part: Path, name: str, commit: str) -> None:
    """Download the manifest, then the files it lists. Raises ManifestError unless the result is a valid pack."""
    from huggingface_hub import snapshot_download

    snapshot_download(name, revision=commit, allow_patterns=[MANIFEST_NAME], local_dir=part)
    listed = [*Manifest.load(part).files]
    snapshot_download(name, revision=commit, allow_patterns=[escape(each) for each in listed], local_dir=part)
    _keep_only({*listed, MANIFEST_NAME}, part)
    check_pack(part, full=True)


def _remove_damaged(part: Path) -> bool:
    """Remove damaged files and their metadata: huggingface_hub trusts its metadata and would not fetch them again."""
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
        for path in (part / name, part / _HUB_METADATA / "download" / f"{name}.metadata"):
            path.unlink(missing_ok=True)
    return bool(damaged)


def _swap_in(folder: Path) -> None:
    """Replace `folder` by its completed download, if there is one. Resumes an interrupted swap."""
    new, old = _sibling(folder, "new"), _sibling(folder, "old")
    if new.is_dir():
        with changing(folder):  # wait until no process is opening the pack
            if folder.is_dir():
                shutil.rmtree(old, ignore_errors=True)
                folder.rename(old)
            new.rename(folder)
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)


def _sibling(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _copy_missing(folder: Path, part: Path) -> None:
    """Copy files of `folder` missing in `part`. No hard links: huggingface_hub overwrites files in place."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        target = part / path.relative_to(folder)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with aside(target) as fresh:
                shutil.copy2(path, fresh)


def _keep_only(names: Collection[str], part: Path) -> None:
    """Remove files that the manifest does not list, such as those of an older commit."""
    for path in sorted(part.rglob("*"), reverse=True):  # files before their folder
        name = path.relative_to(part)
        if name.parts[0] == _HUB_METADATA.parts[0] or name.as_posix() in names:
            continue
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # it holds a listed file
                path.rmdir()
        else:
            path.unlink()
