"""Finds a pack by folder, by hub id, or the bundled one. Talks to the hub only when a name is no folder."""

from __future__ import annotations

import re
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.folders import user_cache

__all__ = ["BUNDLED_PACK", "find_pack", "is_downloaded"]

BUNDLED_PACK = Path(__file__).parent / "packs" / "demo"

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
    folder = Path(name)
    if folder.exists() or isinstance(name, Path) or not _HUB_ID.fullmatch(name):
        if not folder.exists():
            raise ManifestError(f"there is no folder {str(name)!r}, and it is no hub id (owner/name)")
        return folder
    return _from_hub(name)


def is_downloaded(root: Path) -> bool:
    """Tell whether the pack at `root` came from the hub: then a stranger wrote its manifest."""
    return root.resolve().is_relative_to(_downloads().resolve())


def _downloads() -> Path:
    return user_cache() / "packs"


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ManifestError(
            f"{name!r} is no folder; hub ids need huggingface_hub: pip install huggingface_hub"
        ) from None
    # A folder of its own instead of the hub's cache: that one is made of links, which a pack may not hold.
    folder = _downloads() / name.replace("/", "--")
    try:
        return Path(snapshot_download(name, allow_patterns=_PACK_FILES, local_dir=folder))
    except Exception as error:  # the hub raises requests', httpx's and its own kinds alike
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ManifestError(
            f"{name!r} is no folder here, and the hub did not give it ({reason[:160]}); "
            f"check the name and the connection, or give a folder"
        ) from None
