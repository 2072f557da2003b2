"""Save results of measurements in a pack's manifest."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgedecode.errors import ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.gate import is_downloaded
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.pack.pack_change import changed_pack


def saves_result(root: Path, asked: bool | None) -> bool:
    """Return whether a result is saved in a pack. asked: by the user; None: in the user's own packs that are writable,
    neither in the bundled one nor in one downloaded from the hub.
    """
    if asked is not None:
        return asked
    shared = root.resolve() == BUNDLED_PACK.resolve() or is_downloaded(root)
    return not shared and os.access(root, os.W_OK) and os.access(root / MANIFEST_NAME, os.W_OK)


def save_result(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a pack's manifest, given as parsed JSON. Raises ManifestError if it cannot be written."""
    try:
        with changed_pack(root) as found:
            change(found.value)
    except OSError as error:
        raise ManifestError(
            f"the result cannot be saved in {root / MANIFEST_NAME} ({error.strerror or error}): give --no-save"
        ) from None
