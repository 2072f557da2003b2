"""Changes to a copy of a pack."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME


def change_manifest(pack: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a pack's manifest, given as parsed JSON."""
    value = json.loads((pack / MANIFEST_NAME).read_text(encoding="utf-8"))
    change(value)
    (pack / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")


def sign(pack: Path, path: Path) -> None:
    """List a changed file of a pack with its new digest."""
    name = path.relative_to(pack).as_posix()
    change_manifest(pack, lambda value: value["files"].update({name: asdict(file_entry(path))}))


def contents(pack: Path) -> dict[str, bytes]:
    """Return all files by name."""
    return {str(path.relative_to(pack)): path.read_bytes() for path in sorted(pack.rglob("*")) if path.is_file()}
