"""A pack's parts besides the models: tokenizer, chat template, licences, decoding defaults and the manifest."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import edgedecode
from edgedecode.errors import ExportError, IncompatiblePair, cause
from edgedecode.pack.entries import OutsideFile
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Generation, Manifest, ModelEntry
from edgedecode.sampling.weights import sampling_table
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.thinking import thinking_in
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.typed_json import Count, Finite, JsonValue

from .base_model import LICENSES, ModelFolder, read_json
from .frameworks import fields_of, refused
from .graph.model_shape import EndIds

NO_TEMPLATE = "the source has no chat template: a plain one is used"
"""A note for the manifest."""

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
_LICENSES = "licenses"


@dataclass(frozen=True, slots=True)
class _Defaults:
    """The fields of generation_config.json besides the sampling options."""

    do_sample: Any = None
    eos_token_id: EndIds = None
    max_new_tokens: Count | None = None


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The fields of tokenizer_config.json. A special token is a text, or an object with flags."""

    bos_token: Any = None
    eos_token: Any = None
    chat_template: Any = None


def read_generation(source: ModelFolder, *, otherwise: JsonValue = None) -> Generation:
    """Collect end-of-sequence ids from every file that names them, and sampling values if the model samples.

    otherwise: used if generation_config.json does not exist.
    """
    name = "generation_config.json"
    found = read_json(source.folder / name)
    values = (otherwise if found is None else found) or {}
    defaults = fields_of(values, _Defaults, f"{source.name}: {name}")
    tokens = _token_config(source.folder)
    assert isinstance(values, dict)
    return Generation(
        end_token_ids=_end_ids(source, defaults, tokens),
        bos_token=_token(tokens.bos_token),
        eos_token=_token(tokens.eos_token),
        sampling=_sampling(values, sampled=defaults.do_sample is True, where=f"{source.name}: {name}"),
        max_tokens=defaults.max_new_tokens,
    )


def _sampling(values: Mapping[str, JsonValue], *, sampled: bool, where: str) -> dict[str, float]:
    """Return the sampling options. Like transformers, ignore all but penalties unless do_sample is set."""
    found: dict[str, float | None] = {}
    for option in sampling_table():
        if sampled or option.penalise is not None:
            kind: Any = (Count if option.whole else Finite) | None
            found[option.name] = fields_of(values.get(option.name), kind, f"{where}.{option.name}")
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
    value = _token_config(folder).chat_template
    if isinstance(value, list):
        named = {
            item["name"]: item["template"]
            for item in value
            if isinstance(item, dict) and {"name", "template"} <= item.keys()
        }
        value = named.get("default")
    return value if isinstance(value, str) and value else None


def _token_config(folder: Path) -> _Tokens:
    return fields_of(read_json(folder / "tokenizer_config.json") or {}, _Tokens, "tokenizer_config.json")


def _end_ids(source: ModelFolder, defaults: _Defaults, tokens: _Tokens) -> tuple[int, ...]:
    found = [*_ids(defaults.eos_token_id), *_ids(source.ends)]
    end = _token(tokens.eos_token)
    named = source.tokenizer.token_to_id(end) if end else None
    found += [named] if named is not None else []
    if outside := [token for token in found if token >= source.rows]:
        raise ExportError(f"{source.name}: the end-of-sequence id {outside[0]} is outside its {source.rows} rows")
    return tuple(dict.fromkeys(found))


def _ids(found: EndIds) -> tuple[int, ...]:
    if isinstance(found, int):
        return (found,)
    return found or ()


def _token(value: object) -> str:
    """Return a special token's text; it is stored as a string, or as an object with flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def check_tokenizers(target: ModelFolder, draft: ModelFolder) -> None:
    """Raise IncompatiblePair if the tokenizers differ: speculation compares ids, so both must share one vocabulary."""
    if target.tokenizer.digest == draft.tokenizer.digest:
        return
    difference = target.tokenizer.first_difference(draft.tokenizer)
    raise IncompatiblePair(
        f"{target.name} and {draft.name} have different tokenizers ({difference}): take one of the target's family, "
        f"or pair their GGUF files by --draft, which drafts by text"
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
    for path in sorted({path for pattern in LICENSES for path in source.glob(pattern) if path.is_file()}):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path.name)


def write_manifest(
    folder: Path,
    models: Mapping[str, ModelEntry],
    *,
    name: str,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    generation: Generation,
    outside: Mapping[str, OutsideFile] | None = None,
    verb: str = "",
) -> Manifest:
    """Write the manifest of all files in `folder` and `outside`; note in the target's entry if there is no template."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    target = models["target"]
    if template is None:
        target = replace(target, notes=(*target.notes, NO_TEMPLATE))
    manifest = Manifest(
        name=name,
        created_by=f"edgedecode {edgedecode.__version__}{verb}",
        tokenizer=TOKENIZER,
        tokenizer_digest=tokenizer.digest,
        vocabulary_size=tokenizer.size,
        chat_template=TEMPLATE if template is not None else None,
        generation=generation,
        thinking=None if template is None else thinking_in(template.source, tokenizer.token_to_id),
        models={**models, "target": target},
        files={path.relative_to(folder).as_posix(): file_entry(path) for path in files},
        outside=dict(outside or {}),
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return Manifest.load(folder)
