"""Shared by all imports: the request, and files that are copied into the pack or referenced where they are."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.pack.entries import OutsideFile
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import Generation, Manifest, ModelEntry
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

from ..pack_texts import write_manifest


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The models to import (ONNX folders or GGUF files), the pack to create, and how."""

    target: Path
    draft: Path | None
    out: Path
    copy: bool = False
    """Copy the weights into the pack instead of referencing them."""
    name: str | None = None
    """The pack's name; None: the folder's name."""
    license: str | None = None
    """Overrides the licence that the models declare."""
    checked: bool = True
    """Open GGUF files with llama.cpp, if it is installed."""

    @property
    def paths(self) -> Mapping[str, Path]:
        """The models by role."""
        return {"target": self.target} | ({"draft": self.draft} if self.draft is not None else {})


@dataclass(frozen=True, slots=True)
class WeightWidths:
    """How a model's weights are stored; `bits` and `block_size` are those of most weights outside the head."""

    parameters: int
    bits: int
    block_size: int
    """0 for floats, which have no blocks."""
    head_bits: int
    quantization: str
    """The widths or types outside the head, where one width does not tell them; else empty."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A model's manifest entry, and its weights file if that stays outside the pack."""

    entry: ModelEntry
    outside: OutsideFile | None

    @property
    def located(self) -> ModelEntry:
        """The entry with paths that engines can open before a manifest is written."""
        if self.outside is None:
            return self.entry
        return replace(self.entry, weights=self.outside.path, gguf=self.outside.path if self.entry.gguf else "")


def write_imported(
    request: ImportRequest,
    folder: Path,
    models: Mapping[str, Imported],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    generation: Generation,
) -> Manifest:
    """Write the manifest of an imported pack."""
    return write_manifest(
        folder,
        {role: model.entry for role, model in models.items()},
        name=request.name or request.out.absolute().name,
        tokenizer=tokenizer,
        template=template,
        generation=generation,
        outside={each.entry.weights: each.outside for each in models.values() if each.outside is not None},
        verb=", import",
    )


def place_file(path: Path, place: Path, *, copy: bool, progress: Callable[[int], None]) -> OutsideFile | None:
    """Copy a file to `place` in the pack and return None, or return a description of the file outside the pack.

    `progress` gets the bytes copied or hashed.
    """
    if not copy:
        return OutsideFile(str(path), path.stat().st_size, file_sha256(path, progress=progress))
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)
    progress(path.stat().st_size)
    return None
