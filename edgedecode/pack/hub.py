"""Packs of the hub. A download is atomic: afterwards the folder holds exactly the files of the new
manifest."""

import json
import math
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from glob import escape
from pathlib import Path

from edgedecode.cache import area, aside, cache_folder
from edgedecode.errors import ManifestError
from edgedecode.locks import FOLDER, wait_for_lock
from edgedecode.user_notices import notice

from .gate import check_pack
from .integrity import check_files
from .manifest import MANIFEST_NAME, Manifest
from .pack_lock import changing

_TIMEOUT = 20.0
_TOLD: Mapping[int, str] = {
    401: "401: it does not exist, or needs an account with access: set HF_TOKEN",
    403: "403: this account may not read it: ask for access on its page, then set HF_TOKEN",
    404: "404: it does not exist",
    429: "429: too many requests: wait a while, or set HF_TOKEN",
}
A_PAGE = "the host answered with a page or data that is not the hub's: a proxy, or a login in between"
_HUB_METADATA = Path(".cache", "huggingface")
"""Metadata that huggingface_hub stores next to the files."""


def hub_pack_folder(name: str) -> Path | None:
    """Return the folder of a downloaded pack, also of one whose last step was interrupted; None: there is none."""
    folder = _folder(name)
    return folder if folder.is_dir() or _sibling(folder, "new").exists() else None


def hub_pack(name: str, commit: str = "") -> Path:
    """Return the folder of a hub pack, updated; if the update fails, the cached copy, with a notice.

    commit: the latest one; empty: ask the hub. Raises ManifestError.
    """
    folder = _folder(name)
    reason = ""
    try:
        _update(folder, name, commit or _latest_commit(name))
    except ImportError:
        raise ManifestError(
            f"{name!r} is not a folder; hub ids need huggingface_hub: pip install huggingface_hub"
        ) from None
    except Exception as error:  # huggingface_hub raises errors of requests, of httpx and of its own
        reason = hub_reason(error)
    if _sibling(folder, "new").exists():  # complete, but the process was killed before the rename
        with download_lock(folder):
            _swap_in(folder)
    if not folder.is_dir():
        raise ManifestError(
            f"{name!r} is not a folder here, and could not be downloaded from the hub ({reason}); "
            f"check the name and the connection, or give a folder"
        )
    if reason:
        notice(f"{name} could not be updated from the hub ({reason}): using the downloaded copy")
    return folder


def hub_status(error: BaseException) -> int:
    """Return the HTTP status behind an error of huggingface_hub; 0: there is none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def hub_reason(error: BaseException) -> str:
    """Return the reason of an error that huggingface_hub raised, in one line. Its own errors are no TypeError."""
    if not hub_status(error) and isinstance(error, (json.JSONDecodeError, TypeError, KeyError, AttributeError)):
        return A_PAGE
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _TOLD.get(hub_status(error)) or lines[0][:160]


def _update(folder: Path, name: str, commit: str) -> None:
    """Download a commit unless `folder` already holds it. Raises whatever huggingface_hub raises."""
    if commit == _commit_of(folder) and not _sibling(folder, "old").exists():
        return
    with download_lock(folder):
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


@contextmanager
def download_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time download to `folder`; without a lock where the system has none."""
    lock = None
    with suppress(OSError):
        if (locks := cache_folder(FOLDER)) is not None:
            waiting = f"waiting for another process that downloads {folder.name.replace('--', '/')}"
            place = locks / f"download-{folder.parent.name}-{folder.name}"
            lock = wait_for_lock(place, seconds=math.inf, waiting=waiting)
    with lock or nullcontext():
        yield


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


def _folder(name: str) -> Path:
    return area("packs") / name.replace("/", "--")


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
