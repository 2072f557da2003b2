"""Changes a pack atomically: after any interruption it is the old or the new pack.

New files get names that the pack does not list. One rename replaces the manifest by one that lists them, then files
that it no longer lists are removed. What a killed process leaves is unlisted, and the next change may remove it.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgedecode.cache import replace_text
from edgedecode.errors import ManifestError

from .gate import is_downloaded
from .integrity import file_entry
from .manifest import MANIFEST_NAME, Manifest
from .new_folder import flush_folder
from .pack_lock import changing

_INSTALLED = Path(__file__).parents[1] / "packs"
"""The packs that come with the program."""


class PackChange:
    """A change of a locked pack, done when `changed_pack` ends. manifest: the old one."""

    def __init__(self, root: Path) -> None:
        self.root, self.manifest = root, Manifest.load(root)
        self._old = (root / MANIFEST_NAME).read_text(encoding="utf-8")
        self.value: dict[str, Any] = json.loads(self._old)
        """The manifest's JSON, to be edited: unlike `Manifest`, it has the keys of newer versions."""
        self._new: list[str] = []
        self._touched: set[str] = set()

    def place(self, name: str) -> Path:
        """Return the path at which to put a new file of the pack, in a folder that exists."""
        assert name not in self.manifest.files, "the old pack needs it until the end"
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a killed process left it
        self._new.append(name)
        self._touched.add(name)
        return path

    def remove(self, names: Iterable[str]) -> None:
        """Take files out of the manifest, and in the end out of the pack; also those that it does not list."""
        outside = self.value.get("outside") or {}
        for name in names:
            if outside.pop(name, None) is None:  # else it lies elsewhere, where it was imported from
                self._touched.add(name)
            self.value["files"].pop(name, None)

    def commit(self) -> None:
        """Flush the new files, then replace the manifest. Raises ManifestError for an invalid one, and OSError."""
        files = {name: asdict(file_entry(self.root / name, flushed=True)) for name in self._new}
        self.value["files"] = dict(sorted((self.value["files"] | files).items()))
        if self.value == json.loads(self._old):
            return
        inner = {folder for name in self._new for folder in (self.root / name).parents if self._holds(folder)}
        for folder in (*inner, self.root):
            flush_folder(folder)  # the files must be durable before the manifest names them
        replace_manifest(self.root, json.dumps(self.value, indent=1, ensure_ascii=False) + "\n")

    def sweep(self) -> None:
        """Remove what the manifest does not list of the files that were to be added or removed.

        A file that cannot be removed stays, unused.
        """
        listed = Manifest.load(self.root).files
        for name in sorted(self._touched - {*listed}):
            with suppress(OSError):
                (self.root / name).unlink(missing_ok=True)
            for folder in filter(self._holds, (self.root / name).parents):
                with suppress(OSError):  # it is not empty
                    folder.rmdir()

    def _holds(self, folder: Path) -> bool:
        return folder != self.root and folder.is_relative_to(self.root)


@contextmanager
def changed_pack(root: Path) -> Iterator[PackChange]:
    """Lock a pack, and do the change at the end; after an error the pack is as it was. Raises as `commit`."""
    with changing(root):
        change = PackChange(root)
        try:
            yield change
            change.commit()
        finally:
            change.sweep()


def check_own(root: Path, verb: str) -> None:
    """Raise ManifestError for a pack that was downloaded, comes with the program, or cannot be written.

    verb: what to do with a copy of it.
    """
    if is_downloaded(root):
        raise ManifestError(
            f"the pack {root} was downloaded, and the next download would undo a change: copy it elsewhere first"
        )
    if root.resolve().is_relative_to(_INSTALLED.resolve()):
        raise ManifestError(f"the pack {root} is part of the installation: copy it elsewhere and {verb} the copy")
    if closed := [place for place in (root, root / MANIFEST_NAME) if not os.access(place, os.W_OK)]:
        raise ManifestError(f"{closed[0]} cannot be written: copy the pack elsewhere and {verb} the copy")


def replace_manifest(root: Path, text: str) -> None:
    """Replace a locked pack's manifest atomically and flush it to disk.

    Raises ManifestError for an invalid manifest, or OSError; the old manifest then stays.
    """
    Manifest.from_json(json.loads(text))
    replace_text(root / MANIFEST_NAME, text)
    flush_folder(root)
