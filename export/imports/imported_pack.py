"""What all imports share: the request, and files that stay where they lie or are copied."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgedecode.engines.kernel_noise import POSITIONS
from edgedecode.pack.entries import OutsideFile
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import ModelEntry

__all__ = ["ImportRequest", "Imported", "outside_file", "outside_weights", "place_file"]


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What to import: folders of ONNX graphs or GGUF files, where to, and whether their weights are copied."""

    target: Path
    draft: Path | None
    out: Path
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """GGUF files of adapters for a target in GGUF, by name."""
    copy: bool = False
    name: str | None = None
    """The pack's name; None: its folder's."""
    license: str | None = None
    """Overrides what the models say of themselves."""
    noise_positions: int = POSITIONS
    """How long a text the kernels' noise is measured on; 0: not at all."""

    @property
    def paths(self) -> Mapping[str, Path]:
        """The models by role."""
        return {"target": self.target} | ({"draft": self.draft} if self.draft is not None else {})


@dataclass(frozen=True, slots=True)
class Imported:
    """An entry, and its weights where they stayed outside the pack."""

    entry: ModelEntry
    outside: OutsideFile | None

    @property
    def located(self) -> ModelEntry:
        """The entry as engines open it before there is a manifest."""
        if self.outside is None:
            return self.entry
        return replace(self.entry, weights=self.outside.path, gguf=self.outside.path if self.entry.gguf else "")


def outside_weights(models: Mapping[str, Imported]) -> dict[str, OutsideFile]:
    """Return the weights that stayed outside, by the names that the manifest gives them."""
    return {model.entry.weights: model.outside for model in models.values() if model.outside is not None}


def outside_file(path: Path, *, progress: Callable[[int], None] = lambda amount: None) -> OutsideFile:
    """Describe a file that stays where it lies; `progress` gets the bytes hashed."""
    return OutsideFile(str(path), path.stat().st_size, file_sha256(path, progress=progress))


def place_file(
    path: Path, place: Path, *, copy: bool, progress: Callable[[int], None] = lambda amount: None
) -> OutsideFile | None:
    """Copy a file to its place in the pack, or describe it where it lies."""
    if not copy:
        return outside_file(path, progress=progress)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)
    progress(path.stat().st_size)
    return None
