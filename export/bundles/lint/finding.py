"""What rules look at, and what they find."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from edgedecode.typed_json import JsonValue

from ..bundle import BUNDLE_NAME, SUMS_NAME, Bundle

__all__ = ["Fault", "Finding", "Level", "LintedBundle", "Rule"]

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
        listed = {name for name in self.bundle.files if (self.root / name).is_file()}
        return frozenset(
            name
            for name in {*listed, BUNDLE_NAME, SUMS_NAME}
            if not (self.root / name).is_symlink()
            and (name not in self.bundle.files or self.bundle.files[name].nbytes == (self.root / name).stat().st_size)
        )

    @property
    def is_android(self) -> bool:
        return self.bundle.target.startswith("android")

    @property
    def for_npu(self) -> bool:
        return any(graph.socs for model in self.bundle.models.values() for graph in model.graphs)

    def json(self, name: str) -> JsonValue:
        """Return a file's JSON; None: it is missing or damaged, which another rule reports."""
        try:
            value: JsonValue = json.loads((self.root / name).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return value

    def text(self, name: str) -> str:
        """Return a file's text; empty if it cannot be read."""
        try:
            return (self.root / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of `lint`. what: what holds in a good bundle, for the help."""

    id: str
    level: Level
    what: str
    check: Callable[[LintedBundle], Iterator[Fault]]
