"""What a pack holds beside its models: tokenizer, chat template, licences, defaults for decoding, the list of files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import edgedecode
from edgedecode.errors import ExportError, IncompatiblePair
from edgedecode.pack.entries import AdapterEntry, OutsideFile
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Generation, Manifest, ModelEntry
from edgedecode.sampling.weights import sampling_table
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.typed_json import JsonValue

from .base_model import license_files, read_json
from .frameworks import refused
from .json_fields import Fields

__all__ = [
    "NO_TEMPLATE",
    "TEMPLATE",
    "TOKENIZER",
    "PackTexts",
    "check_tokenizers",
    "compiled_template",
    "copy_licenses",
    "copy_texts",
    "open_template",
    "read_chat_template",
    "read_generation",
    "write_manifest",
]

NO_TEMPLATE = "the source has no chat template: a plain one is used"
"""A note for the manifest."""

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
_LICENSES = "licenses"


class GenerationSource(Protocol):
    """What is asked of a model: where its texts lie, and what ids it and its tokenizer know."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def config(self) -> Fields: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def rows(self) -> int: ...


def read_generation(source: GenerationSource, *, otherwise: Fields | None = None) -> Generation:
    """Collect end-of-sequence ids from every place that names them, and sampling values where the model samples.

    otherwise: taken for a generation_config.json that is not there.
    """
    name = "generation_config.json"
    with refused(source.name):
        found = read_json(source.folder / name)
        values = otherwise if found is None and otherwise is not None else Fields.of(found or {}, name)
        sampled = values.values.get("do_sample") is True
        tokens = _token_config(source.folder)
        return Generation(
            end_token_ids=_end_ids(source, values, tokens),
            bos_token=_token(tokens.values.get("bos_token")),
            eos_token=_token(tokens.values.get("eos_token")),
            sampling=_sampling(values, sampled=sampled),
            max_tokens=values.optional_integer("max_new_tokens"),
        )


def _sampling(values: Fields, *, sampled: bool) -> dict[str, float]:
    """Return the options given; transformers ignores all but penalties unless do_sample is set, and so must we."""
    found = {
        option.name: values.optional_integer(option.name) if option.whole else values.optional_number(option.name)
        for option in sampling_table()
        if sampled or option.penalise is not None
    }
    if sampled:
        found["temperature"] = found["temperature"] or 1.0
    return {name: value for name, value in found.items() if value is not None}


def read_chat_template(folder: Path) -> str | None:
    """Return the chat template: chat_template.jinja, else the (default) one of tokenizer_config.json, else None."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"{path} cannot be read: {error}") from None
    value = _token_config(folder).values.get("chat_template")
    if isinstance(value, list):
        named = {
            item["name"]: item["template"]
            for item in value
            if isinstance(item, dict) and {"name", "template"} <= item.keys()
        }
        value = named.get("default")
    return value if isinstance(value, str) and value else None


def _token_config(folder: Path) -> Fields:
    with refused():
        return Fields.of(read_json(folder / "tokenizer_config.json") or {}, "tokenizer_config.json")


def _end_ids(source: GenerationSource, generation: Fields, tokens: Fields) -> tuple[int, ...]:
    found = [*_ids(generation, "eos_token_id"), *_ids(source.config, "eos_token_id")]
    named = _id_of(source.tokenizer, _token(tokens.values.get("eos_token")))
    found += [named] if named is not None else []
    if outside := [token for token in found if token >= source.rows]:
        raise ExportError(f"{source.name}: the end-of-sequence id {outside[0]} is outside its {source.rows} rows")
    return tuple(dict.fromkeys(found))


def _ids(fields: Fields, key: str) -> tuple[int, ...]:
    value = fields.values.get(key)
    if value is None:
        return ()
    return fields.integers(key) if isinstance(value, list) else (fields.integer(key, low=0),)


def _id_of(tokenizer: Tokenizer, token: str) -> int | None:
    return tokenizer.token_to_id(token) if token else None


def _token(value: JsonValue) -> str:
    """A special token is a string, or an object with its flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


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
    with refused(name):
        return ChatTemplate(text, bos_token=generation.bos_token, eos_token=generation.eos_token)


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


@dataclass(frozen=True, slots=True)
class PackTexts:
    """What a pack says of itself besides its models: its name, tokenizer, chat template, and defaults for decoding."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    generation: Generation


def write_manifest(
    folder: Path,
    texts: PackTexts,
    models: Mapping[str, ModelEntry],
    *,
    adapters: Mapping[str, AdapterEntry],
    outside: Mapping[str, OutsideFile] | None = None,
    verb: str = "",
) -> Manifest:
    """List everything that lies in `folder` and what stayed `outside`; the target's notes say if no template came."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    target = models["target"]
    if texts.template is None:
        target = replace(target, notes=(*target.notes, NO_TEMPLATE))
    manifest = Manifest(
        name=texts.name,
        created_by=f"edgedecode {edgedecode.__version__}{verb}",
        tokenizer=TOKENIZER,
        tokenizer_digest=texts.tokenizer.digest,
        vocabulary_size=texts.tokenizer.size,
        chat_template=TEMPLATE if texts.template is not None else None,
        generation=texts.generation,
        models={**models, "target": target},
        files={path.relative_to(folder).as_posix(): file_entry(path) for path in files},
        outside=dict(outside or {}),
        adapters=adapters,
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return Manifest.load(folder)
