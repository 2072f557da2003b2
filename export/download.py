"""Models of the Hugging Face hub: the commit, its files, and without a network what the hub's own cache has of it.

Knows names and patterns of files, not what is in them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from edgedecode.errors import ExportError

from .frameworks import reason_of

__all__ = ["WEIGHTS", "fetch_files", "find_snapshot"]

_log = logging.getLogger(__name__)

WEIGHTS = ("*.safetensors",)
_DOUBLES = ("consolidated*.safetensors",)
"""The same weights once more, in the layout of another program."""
_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit of a hub model, and the folder where its files come to lie."""

    folder: Path
    commit: str
    weights_nbytes: int
    """What the weights weigh on the hub; 0 where it could not be asked."""


def find_snapshot(name: str, patterns: Sequence[str]) -> Snapshot:
    """Find the newest commit of a hub model and download its files that match `patterns`.

    Where the hub is away, what its cache holds is used, with a notice. Raises ExportError when neither has the model.
    """
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise ExportError(
            f"there is no folder {name!r}; hub ids need huggingface_hub: pip install 'edgedecode[export]'"
        ) from None
    try:
        found = HfApi().model_info(name, timeout=_TIMEOUT, files_metadata=True)
    except Exception as error:  # the hub raises requests', httpx's and its own kinds alike
        reason = reason_of(error)
    else:
        sizes = [file.size or 0 for file in found.siblings or () if _matches(file.rfilename, WEIGHTS)]
        folder = fetch_files(name, None, patterns)  # by branch: only then the hub's cache can find it again offline
        return Snapshot(folder, folder.name, sum(sizes))  # the hub names the folder of a snapshot by its commit
    try:
        folder = Path(snapshot_download(name, local_files_only=True, **_at_the_top(patterns)))
    except Exception:
        raise _not_given(name, reason) from None
    commit = folder.name[:12]
    _log.warning("%s: the hub was not asked (%s); the copy in its cache is used, commit %s", name, reason, commit)
    return Snapshot(folder, folder.name, 0)


def fetch_files(
    name: str, commit: str | None, patterns: Sequence[str], *, progress: Callable[[int], None] = lambda nbytes: None
) -> Path:
    """Download the files at the top of a commit, None: the newest, that match and are not there yet.

    `progress` gets the bytes. Raises ExportError.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=commit, tqdm_class=_told(progress), **_at_the_top(patterns)))
    except Exception as error:
        raise _not_given(name, reason_of(error)) from None


def _at_the_top(patterns: Sequence[str]) -> dict[str, Any]:
    return {"allow_patterns": list(patterns), "ignore_patterns": ["*/*", *_DOUBLES]}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    doubled = any(fnmatchcase(name, pattern) for pattern in _DOUBLES)
    return "/" not in name and not doubled and any(fnmatchcase(name, pattern) for pattern in patterns)


def _not_given(name: str, reason: str) -> ExportError:
    return ExportError(
        f"{name!r} is not a folder here, and the hub did not give it ({reason}): "
        f"check the name and the connection, or give a folder"
    )


def _told(progress: Callable[[int], None]) -> Any:  # noqa: ANN401  (the hub's bars are untyped)
    """Return a class of bars for the hub: they show nothing and pass on the bytes that reach the disk."""
    from huggingface_hub.utils.tqdm import tqdm

    silent: Any = tqdm

    class Told(silent):  # type: ignore[misc]
        def __init__(self, *arguments: object, **options: object) -> None:
            self._bytes = options.get("unit") == "B" and not str(options.get("name", "")).endswith(".transfer")
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if self._bytes and n:
                progress(int(n))

    return Told
