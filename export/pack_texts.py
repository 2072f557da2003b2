"""A pack's parts besides the models: tokenizer, chat template, licences, decoding defaults and the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import edgedecode
from edgedecode.errors import ExportError, IncompatiblePair, cause
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

NO_TEMPLATE = "the source has no chat template: a plain one is used"
"""A note for the manifest."""

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
_LICENSES = "licenses"


class GenerationSource(Protocol):
    """The facts about a model that its generation defaults are read from."""

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
    """Collect end-of-sequence ids from every file that names them, and sampling values if the model samples.

    otherwise: used if generation_config.json does not exist.
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
    """Return the sampling options. Like transformers, ignore all but penalties unless do_sample is set."""
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
            raise ExportError(f"{path} cannot be read: {cause(error)}") from None
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
    """Return a special token's text; it is stored as a string, or as an object with flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def check_tokenizers(target: GenerationSource, draft: GenerationSource) -> None:
    """Raise IncompatiblePair if the tokenizers differ: speculation compares ids, so both must share one vocabulary."""
    if target.tokenizer.digest == draft.tokenizer.digest:
        return
    difference = target.tokenizer.first_difference(draft.tokenizer)
    raise IncompatiblePair(
        f"{target.name} and {draft.name} have different tokenizers ({difference}): take a draft of the target's family"
    )


def open_template(source: Path, generation: Generation, *, name: str) -> ChatTemplate | None:
    """Return the chat template of the model in `source`, or None. Raises ExportError if it does not compile."""
    text = read_chat_template(source)
    return None if text is None else compiled_template(text, generation, name=name)


def compiled_template(text: str, generation: Generation, *, name: str) -> ChatTemplate:
    """Compile a chat template. Raises ExportError if it is invalid."""
    with refused(name):
        return ChatTemplate(text, bos_token=generation.bos_token, eos_token=generation.eos_token)


def copy_texts(source: Path, pack: Path, *, template: ChatTemplate | None) -> None:
    """Copy the tokenizer and write the template."""
    shutil.copyfile(source / TOKENIZER, pack / TOKENIZER)
    if template is not None:
        (pack / TEMPLATE).write_text(template.source, encoding="utf-8")


def copy_licenses(source: Path, pack: Path, *, role: str) -> None:
    """Copy a model's licence files, if it has any."""
    folder = pack / _LICENSES / role
    for path in license_files(source):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path.name)


@dataclass(frozen=True, slots=True)
class PackTexts:
    """A pack's name, tokenizer, chat template and decoding defaults."""

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
    """Write the manifest of all files in `folder` and `outside`; note in the target's entry if there is no template."""
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
