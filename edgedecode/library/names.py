"""What a word means as the name of a model: exactly, completed, or nearly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.pack.manifest import MANIFEST_NAME

from .packages import KNOWN
from .stored import StoredModel
from .stores import stored_models

BUNDLED = "demo"
"""The bundled pack's name, unless the current folder has a pack of this name."""
MODEL_FILES = (".gguf", ".onnx", ".safetensors")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(:\w[\w.-]*|(/\w[\w.-]*)+\.gguf)?")
_PATH = re.compile(r"(\.\.?|~|[A-Za-z]:)[/\\]|/[^/\s]+/")
"""How a path begins that is not a hub id. One slash alone begins a command of a chat."""
_FOLDERS = re.compile(r"\S*/(\S+/\S*)?")
"""A path of several folders, or one that a shell completed."""
_SIZED = re.compile(r"[A-Za-z][\w.-]*(:latest|[:-]\d+(\.\d+)?[bm]\b[\w.-]*)", re.IGNORECASE)
"""A model's name with its size or its tag, as Ollama has them."""
_WORD = re.compile(r"\S{1,200}")
_GGUF = b"GGUF"


def names_pack(word: str) -> bool:
    """Return whether a word alone means a model: `demo`, a hub id, one that is here, or a path.

    Also if it looks like one: by its size, or near a model's name with digits or a colon, which a message of one word
    seldom has.
    """
    if word == BUNDLED or is_hub_name(word) or (is_path(word) and not re.search(r"\s", word)):
        return True
    if _FOLDERS.fullmatch(word) or _SIZED.fullmatch(word):
        return True
    with suppress(OSError):  # a long text is no file name
        path = expanded(word)
        if is_gguf(path) or any((path / name).is_file() for name in (MANIFEST_NAME, "config.json")):
            return True
    if not _WORD.fullmatch(word):
        return False
    models = stored_models()
    return bool(named(word, models) or (re.search(r"[:\d]", word) and near_names(word, models)))


def could_be_pack(word: str) -> bool:
    """Return whether a word may mean a model where one is expected: also any folder, path, or part of a name."""
    if names_pack(word) or re.fullmatch(r"\S*/\S*", word):
        return True
    with suppress(OSError):
        if expanded(word).is_dir():
            return True
    return bool(_WORD.fullmatch(word) and near_names(word, stored_models()))


def named(word: str, models: Iterable[StoredModel]) -> list[StoredModel]:
    """Return the models that a word names; case does not count. Copies of a file in several stores count once."""
    plain = word.casefold()
    alike = [model for model in models if plain in map(str.casefold, model.names)]
    exact = [model for model in alike if model.name.casefold() == plain] or alike
    return list({(model.path.name, model.nbytes): model for model in reversed(exact)}.values())[::-1]


def completed(word: str, models: Iterable[StoredModel]) -> list[StoredModel]:
    """Return the models with a name that begins with a word, or else that contains it."""
    plain, found = word.casefold(), list(models)
    begun = [model for model in found if any(name.casefold().startswith(plain) for name in model.names)]
    return begun or [model for model in found if plain in model.name.casefold()]


def near_names(word: str, models: Sequence[StoredModel]) -> list[str]:
    """Return up to three names that were possibly meant."""
    spelled = {name.casefold(): model.name for model in models for name in model.names} | {name: name for name in KNOWN}
    close = [spelled[name] for name in get_close_matches(word.casefold(), spelled, 3, 0.7)]
    return list(dict.fromkeys((*(model.name for model in completed(word, models)), *close)))[:3]


def one_of(word: str, found: Sequence[StoredModel]) -> StoredModel:
    """Return the only model found that can be used. Raises ManifestError for several, and for none."""
    usable = [model for model in found if not model.problem]
    if len(usable) > 1:
        places = ", ".join(map(str, usable[:4]))
        raise ManifestError(f"{len(usable)} models are named {word!r}: {places}: give a longer name, or the path")
    if not usable:
        raise ManifestError(f"{found[0].name} ({found[0].store}): {found[0].problem}")
    return usable[0]


def is_hub_name(word: str) -> bool:
    """Return whether a word is a hub id, alone or with a type or a file: owner/name, owner/name:Q8_0."""
    return bool(_HUB_NAME.fullmatch(word)) and not (is_path(word) and word.count("/") < 2)


def is_path(word: str) -> bool:
    return bool(_PATH.match(word)) or word.endswith(MODEL_FILES)


def is_gguf(path: Path) -> bool:
    """Return whether there is a file that is a GGUF file by its name or its first bytes."""
    if path.suffix == ".gguf" or not path.is_file():
        return path.is_file()
    with path.open("rb") as file:
        return file.read(len(_GGUF)) == _GGUF


def expanded(name: str | Path) -> Path:
    """Replace a leading ~, which a shell leaves in place after `=`, by the home folder."""
    with suppress(RuntimeError):  # there is no home
        return Path(name).expanduser()
    return Path(name)
