"""Keeps a comparison in the pack's manifest: whole or not at all, and nothing else in it changes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.pack.engine_equality import Equality
from edgedecode.pack.gate import is_downloaded
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.pack.pack_lock import changing, replace_manifest

__all__ = ["save_equality", "saves_by_itself"]


def saves_by_itself(root: Path) -> bool:
    """Tell whether a pack's manifest is the user's own to write: not the package's, not another's from the hub."""
    ours = root.resolve() == BUNDLED_PACK.resolve() or is_downloaded(root)
    return not ours and os.access(root, os.W_OK) and os.access(root / MANIFEST_NAME, os.W_OK)


def save_equality(root: Path, found: Mapping[str, Equality]) -> None:
    """Write what was found of each role into the manifest. Raises ManifestError where that cannot be written."""
    path = root / MANIFEST_NAME
    try:
        with changing(root):
            value = json.loads(path.read_text(encoding="utf-8"))  # keys that only a newer version knows stay
            for role, equality in found.items():
                value["models"][role]["equality"] = asdict(equality)
            replace_manifest(root, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ManifestError(
            f"the result cannot be kept in {path} ({error.strerror or error}): give --no-save"
        ) from None
