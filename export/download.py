"""Downloads models from the Hugging Face hub, and falls back to the hub's local cache when offline."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from edgedecode.errors import ExportError

from .frameworks import reason_of

_log = logging.getLogger(__name__)

WEIGHTS = ("*.safetensors",)
_DUPLICATES = ("consolidated*.safetensors",)
"""A second copy of the weights, in another program's layout."""
_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit of a hub model, and the folder its files are downloaded to."""

    folder: Path
    commit: str
    weights_nbytes: int
    """Size of the weights on the hub; 0 if the hub could not be reached."""


def find_snapshot(name: str, patterns: Sequence[str]) -> Snapshot:
    """Find the latest commit of a hub model and download its files that match `patterns`.

    If the hub cannot be reached, use the cached copy and log a warning. Raises ExportError if neither has the model.
    """
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise ExportError(
            f"there is no folder {name!r}; hub ids need huggingface_hub: pip install 'edgedecode[export]'"
        ) from None
    try:
        found = HfApi().model_info(name, timeout=_TIMEOUT_SECONDS, files_metadata=True)
    except Exception as error:  # the hub raises its own errors, and those of requests and httpx
        reason = reason_of(error)
    else:
        sizes = [file.size or 0 for file in found.siblings or () if _matches(file.rfilename, WEIGHTS)]
        folder = fetch_files(name, None, patterns)  # by branch, else the hub's cache cannot find it offline
        return Snapshot(folder, folder.name, sum(sizes))  # the snapshot folder is named after its commit
    try:
        folder = Path(snapshot_download(name, local_files_only=True, **_top_level(patterns)))
    except Exception:
        raise _download_failed(name, reason) from None
    commit = folder.name[:12]
    _log.warning("%s: the hub cannot be reached (%s); using the cached copy, commit %s", name, reason, commit)
    return Snapshot(folder, folder.name, 0)


def fetch_files(
    name: str, commit: str | None, patterns: Sequence[str], *, progress: Callable[[int], None] = lambda nbytes: None
) -> Path:
    """Download the top-level files of a commit (None: the latest) that match and are not cached yet.

    `progress` is called with the number of bytes of each write. Raises ExportError.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(name, revision=commit, tqdm_class=_progress_bar(progress), **_top_level(patterns))
        )
    except Exception as error:
        raise _download_failed(name, reason_of(error)) from None


def _top_level(patterns: Sequence[str]) -> dict[str, Any]:
    return {"allow_patterns": list(patterns), "ignore_patterns": ["*/*", *_DUPLICATES]}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    duplicate = any(fnmatchcase(name, pattern) for pattern in _DUPLICATES)
    return "/" not in name and not duplicate and any(fnmatchcase(name, pattern) for pattern in patterns)


def _download_failed(name: str, reason: str) -> ExportError:
    return ExportError(
        f"{name!r} is not a folder, and it could not be downloaded from the hub ({reason}): "
        f"check the name and the connection, or give a folder"
    )


def _progress_bar(progress: Callable[[int], None]) -> Any:  # noqa: ANN401  (the hub's bars are untyped)
    """Return a progress-bar class for the hub that shows nothing and reports the bytes written to disk."""
    from huggingface_hub.utils.tqdm import tqdm

    silent: Any = tqdm

    class ProgressBar(silent):  # type: ignore[misc]
        def __init__(self, *arguments: object, **options: object) -> None:
            self._bytes = options.get("unit") == "B" and not str(options.get("name", "")).endswith(".transfer")
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if self._bytes and n:
                progress(int(n))

    return ProgressBar
