"""What rules look at, and what they find."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, TypeAlias

from edgedecode.typed_json import JsonValue

from ..bundle import BUNDLE_NAME, SUMS_NAME, Bundle

_MOST_NBYTES = 64 << 20
"""Largest text that is read."""
Level: TypeAlias = Literal["error", "warning", "note"]


class Fault(NamedTuple):
    """One place where a rule does not hold. file: relative to the bundle."""

    file: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault with its rule's id and level."""

    rule: str
    level: Level
    file: str
    message: str
    remedy: str


class LintedBundle:
    """A bundle and what is in its folder."""

    def __init__(self, root: Path, bundle: Bundle) -> None:
        self.root, self.bundle = root, bundle

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The files and links of the folder, without what Python and Gradle leave there."""
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if name not in ("__pycache__", ".gradle", "build", ".venv")]
            links = [name for name in folders if (Path(folder) / name).is_symlink()]
            found += [(Path(folder) / name).relative_to(self.root).as_posix() for name in (*files, *links)]
        return tuple(sorted(found))

    @cached_property
    def sound(self) -> frozenset[str]:
        """The listed files that are ordinary files of the right size, which other rules may read."""
        return frozenset(
            name
            for name in {*self.bundle.files, BUNDLE_NAME, SUMS_NAME}
            if self.is_ordinary(name)
            and (name not in self.bundle.files or self.bundle.files[name].nbytes == (self.root / name).stat().st_size)
        )

    def is_link(self, name: str) -> bool:
        """Return whether a file is a link, or in a folder that is one."""
        return any((self.root / part).is_symlink() for part in (name, *map(str, PurePosixPath(name).parents[:-1])))

    def is_ordinary(self, name: str) -> bool:
        """Return whether there is a file of this name that is no link, device or pipe."""
        return not self.is_link(name) and (self.root / name).is_file()

    @property
    def is_android(self) -> bool:
        return self.bundle.target.startswith("android")

    @property
    def for_npu(self) -> bool:
        return any(graph.socs for model in self.bundle.models.values() for graph in model.graphs)

    def json(self, name: str) -> JsonValue:
        """Return a file's JSON; None: it is missing or damaged, which another rule reports."""
        try:
            value: JsonValue = json.loads(self.text(name))
        except (ValueError, RecursionError):
            return None
        return value

    def text(self, name: str) -> str:
        """Return a file's text; empty if it cannot be read, is no ordinary file, or is too large."""
        path = self.root / name
        try:
            if not self.is_ordinary(name) or path.stat().st_size > _MOST_NBYTES:
                return ""
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of `lint`. what: what holds in a good bundle, for the help."""

    id: str
    level: Level
    what: str
    check: Callable[[LintedBundle], Iterator[Fault]]
