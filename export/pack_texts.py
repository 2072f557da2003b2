"""What a pack holds beside its models: tokenizer, chat template, licences, and the list of all its files."""

from __future__ import annotations

import shutil
from pathlib import Path

from edgedecode.errors import ExportError, IncompatiblePair, ManifestError
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import FileEntry, Generation
from edgedecode.text.chat_template import ChatTemplate

from .generation import GenerationSource, read_chat_template
from .source import license_files

__all__ = [
    "NO_TEMPLATE",
    "TEMPLATE",
    "TOKENIZER",
    "check_tokenizers",
    "compiled_template",
    "copy_licenses",
    "copy_texts",
    "list_files",
    "open_template",
]

NO_TEMPLATE = "the source has no chat template: a plain one is used"
"""A note for the manifest."""

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
_LICENSES = "licenses"


def check_tokenizers(target: GenerationSource, draft: GenerationSource) -> None:
    """Raise IncompatiblePair for two tokenizers: speculation compares ids, so all must mean the same to both models."""
    if target.tokenizer.digest == draft.tokenizer.digest:
        return
    difference = target.tokenizer.first_difference(draft.tokenizer)
    raise IncompatiblePair(
        f"{target.name} and {draft.name} have different tokenizers ({difference}): take a draft of the target's family"
    )


def open_template(source: Path, generation: Generation, *, name: str) -> ChatTemplate | None:
    """Return the chat template of the model in `source`, None without one. Raises ExportError for a broken one."""
    text = read_chat_template(source)
    return None if text is None else compiled_template(text, generation, name=name)


def compiled_template(text: str, generation: Generation, *, name: str) -> ChatTemplate:
    """Compile a chat template. Raises ExportError for a broken one."""
    try:
        return ChatTemplate(text, bos_token=generation.bos_token, eos_token=generation.eos_token)
    except ManifestError as error:
        raise ExportError(f"{name}: {error}") from None


def copy_texts(source: Path, pack: Path, *, template: ChatTemplate | None) -> None:
    """Copy the tokenizer and write the template."""
    shutil.copyfile(source / TOKENIZER, pack / TOKENIZER)
    if template is not None:
        (pack / TEMPLATE).write_text(template.source, encoding="utf-8")


def copy_licenses(source: Path, pack: Path, *, role: str) -> None:
    """Copy a model's licence texts, if it has any."""
    folder = pack / _LICENSES / role
    for path in license_files(source):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path.name)


def list_files(pack: Path) -> dict[str, FileEntry]:
    """Hash every file that lies in the pack."""
    paths = sorted(path for path in pack.rglob("*") if path.is_file())
    return {
        path.relative_to(pack).as_posix(): FileEntry(nbytes=path.stat().st_size, sha256=file_sha256(path))
        for path in paths
    }
