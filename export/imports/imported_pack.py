"""What all imports share: files that stay where they lie or are copied, and the manifest around imported models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import edgedecode
from edgedecode.pack.adapter_entry import AdapterEntry
from edgedecode.pack.entries import OutsideFile
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, Generation, Manifest, ModelEntry
from edgedecode.text.chat_template import ChatTemplate

from ..pack_texts import NO_TEMPLATE, TEMPLATE, TOKENIZER, list_files

__all__ = ["Imported", "PackTexts", "outside_file", "place_file", "write_manifest"]


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


@dataclass(frozen=True, slots=True)
class PackTexts:
    """What a pack says of itself besides its models: the tokenizer's identity, the chat template, the defaults."""

    name: str
    tokenizer_digest: str
    vocabulary_size: int
    template: ChatTemplate | None
    generation: Generation


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


def write_manifest(
    folder: Path,
    texts: PackTexts,
    models: Mapping[str, Imported],
    *,
    adapters: Mapping[str, AdapterEntry] | None = None,
    outside: Mapping[str, OutsideFile] | None = None,
) -> Manifest:
    """List everything that lies in `folder` and what stayed outside; `outside`: files that are no model's weights."""
    found = {model.entry.weights: model.outside for model in models.values() if model.outside is not None}
    manifest = Manifest(
        name=texts.name,
        created_by=f"edgedecode {edgedecode.__version__}, import",
        tokenizer=TOKENIZER,
        tokenizer_digest=texts.tokenizer_digest,
        vocabulary_size=texts.vocabulary_size,
        chat_template=TEMPLATE if texts.template is not None else None,
        generation=texts.generation,
        models={role: _noted(model.entry, role, texts.template) for role, model in models.items()},
        files=list_files(folder),
        outside={**found, **(outside or {})},
        adapters=adapters or {},
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return Manifest.load(folder)


def _noted(entry: ModelEntry, role: str, template: ChatTemplate | None) -> ModelEntry:
    """Say of the target that there was no chat template."""
    return replace(entry, notes=(*entry.notes, NO_TEMPLATE)) if role == "target" and template is None else entry
