"""A bundle as lint's rules look at it: its description, its texts, its native libraries."""

import os
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from edgedecode.errors import RuntimeUnavailable

from .bundle import Bundle

_MOST_NBYTES = 64 << 20
"""Largest text that is read."""
_BUILT = ("__pycache__", ".gradle", "build", ".venv")
"""Folders in which Gradle and Python leave what they made."""


class NativeLibrary(NamedTuple):
    """alignment: the smallest of the loaded segments, in bytes. damage: why it cannot be read; empty: it can."""

    arm64: bool = False
    alignment: int = 0
    damage: str = ""


class LintedBundle:
    """A bundle and the files of its folder."""

    def __init__(self, root: Path, bundle: Bundle) -> None:
        self.root, self.bundle = root, bundle
        self.is_android = bundle.target.startswith("android")
        self.for_npu = any(graph.socs for model in bundle.models.values() for graph in model.graphs)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The files of the folder, whether listed or not."""
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if name not in _BUILT]
            found += [(Path(folder) / name).relative_to(self.root).as_posix() for name in files]
        return tuple(sorted(found))

    @cached_property
    def libraries(self) -> dict[str, NativeLibrary]:
        """The native libraries for Android, by name. Raises RuntimeUnavailable without pyelftools."""
        names = [name for name in self.paths if name.endswith(".so") and self.is_ordinary(name)]
        return {name: _read_library(self.root / name) for name in names}

    def is_ordinary(self, name: str) -> bool:
        """Return whether there is a file of this name that is no link, device or pipe, nor in a linked folder."""
        parts = (name, *map(str, PurePosixPath(name).parents[:-1]))
        return (self.root / name).is_file() and not any((self.root / part).is_symlink() for part in parts)

    def text(self, name: str) -> str:
        """Return a file's text; empty if it cannot be read, is not a regular file, or is too large."""
        path = self.root / name
        try:
            if not self.is_ordinary(name) or path.stat().st_size > _MOST_NBYTES:
                return ""
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""


def _read_library(path: Path) -> NativeLibrary:
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise RuntimeUnavailable(
            f"lint reads {path.name} with pyelftools, which is missing: pip install 'edgedecode[export]'"
        ) from None
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            alignments = [segment["p_align"] for segment in elf.iter_segments("PT_LOAD")]
            return NativeLibrary(elf.elfclass == 64 and elf.get_machine_arch() == "AArch64", min(alignments, default=0))
    except Exception as error:  # of a damaged file: its own exceptions, and those of seeking and unpacking
        return NativeLibrary(damage=str(error) or type(error).__name__)
