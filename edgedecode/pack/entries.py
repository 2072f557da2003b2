"""The files a manifest lists: size and digest, inside the pack or where an import found them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgedecode.errors import ManifestError

from .json_fields import Fields

__all__ = ["FileEntry", "OutsideFile", "plain_path"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the pack: its size in bytes and the sha256 of its content, in hex."""

    nbytes: int
    sha256: str

    @classmethod
    def of(cls, fields: Fields) -> FileEntry:
        """Check a parsed entry. Raises ManifestError naming the field."""
        return cls(nbytes=fields.integer("nbytes", low=0), sha256=fields.text("sha256"))


@dataclass(frozen=True, slots=True)
class OutsideFile:
    """A weights file or adapter that an import uses where it lies: absolute path, size in bytes, sha256 in hex."""

    path: str
    nbytes: int
    sha256: str

    @classmethod
    def of(cls, name: str, fields: Fields) -> OutsideFile:
        """Check a parsed entry; a graph finds its weights by their bare name, which therefore stays the same."""
        text = fields.text("path")
        path = Path(text)
        same = path.name == PurePosixPath(name).name
        if text.replace("\\", "/").startswith("//"):  # Windows names itself to another machine that a path leads to
            raise ManifestError(
                f"{fields.where}.path {text!r} lies on another machine or is a device: refused; import with --copy"
            )
        if not text.isprintable() or not path.is_absolute() or ".." in path.parts or not same:
            raise ManifestError(
                f"{fields.where}.path {text!r} is not an absolute path of a file called like {name!r}: refused"
            )
        return cls(path=text, nbytes=fields.integer("nbytes", low=0), sha256=fields.text("sha256"))


def plain_path(name: str) -> str:
    """Return the pack-relative path `name`, refusing whatever could leave the pack."""
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and ":" not in name
    if not plain or not path.parts or path.is_absolute() or ".." in path.parts:
        raise ManifestError(f"the manifest names the file {name!r}, which is not a plain path inside the pack: refused")
    return str(path)
