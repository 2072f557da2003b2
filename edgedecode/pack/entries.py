"""The files a manifest lists: size and digest, inside the pack or where an import found them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgedecode.errors import ManifestError
from edgedecode.typed_json import Count

__all__ = ["FileEntry", "OutsideFile", "plain_path"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the pack: its size in bytes and the sha256 of its content, in hex."""

    nbytes: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class OutsideFile:
    """A weights file or adapter that an import uses where it lies: absolute path, size in bytes, sha256 in hex."""

    path: str
    nbytes: Count
    sha256: str

    def check(self, name: str) -> None:
        """Raise ManifestError for a path that may not be opened, or names a file that is not called as `name` is.

        A graph finds its weights by their bare name, which therefore stays the same.
        """
        where, text, path = f"manifest.outside.{name}.path", self.path, Path(self.path)
        same = path.name == PurePosixPath(name).name
        if text.replace("\\", "/").startswith("//"):  # Windows names itself to another machine that a path leads to
            raise ManifestError(f"{where} {text!r} lies on another machine or is a device: refused; import with --copy")
        if not text.isprintable() or not path.is_absolute() or ".." in path.parts or not same:
            raise ManifestError(f"{where} {text!r} is not an absolute path of a file called like {name!r}: refused")


def plain_path(name: str) -> str:
    """Return the pack-relative path `name`, refusing whatever could leave the pack."""
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and ":" not in name
    if not plain or not path.parts or path.is_absolute() or ".." in path.parts:
        raise ManifestError(f"the manifest names the file {name!r}, which is not a plain path inside the pack: refused")
    return str(path)
