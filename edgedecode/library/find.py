"""Finds the pack that a name means, one that is here or one that is downloaded, and knows such a name among words."""

import re
from contextlib import suppress
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.pack.manifest import MANIFEST_NAME

from .names import BUNDLED, BUNDLED_PACK, expanded, is_gguf, is_hub_name, is_path

_FOLDERS = re.compile(r"\S*/(\S+/\S*)?")
"""A path of several folders, or one that a shell completed."""
_SIZED = re.compile(r"[A-Za-z][\w.-]*(:latest|[:-]\d+(\.\d+)?[bm]\b[\w.-]*)", re.IGNORECASE)
"""A model's name with its size or its tag, as Ollama has them."""
_WORD = re.compile(r"\S{1,200}")


def find_pack(name: str | Path | None, draft: str | Path | None = None) -> Path:
    """Return the folder of the pack that a name means: a folder, a GGUF file, a model on this machine, or a hub id.

    None, `demo`: the bundled pack. draft: the draft model; both are then GGUF files. What is not here is downloaded, a
    pack of the hub also updated. Raises ManifestError with one line that says what was tried.
    """
    path, title = _found(name)
    if draft is None:
        return pack_at(path, title=title)
    from .file_packs import file_pack

    helper, _ = _found(draft)
    for each in (path, helper):
        if not _is_model_file(each):
            raise ManifestError(f"--draft pairs two GGUF files, and {each} is none: a pack holds its draft itself")
    return file_pack(path, draft=helper, title=title)


def pack_at(path: Path, *, title: str) -> Path:
    """Return the folder of the pack of a GGUF file, or of a pack's folder. title: as for `file_pack`."""
    if not _is_model_file(path) and not (path / MANIFEST_NAME).is_symlink():
        return path
    from .file_packs import file_pack, without_links  # late: most packs are opened where they lie

    return file_pack(path, title=title) if _is_model_file(path) else without_links(path)


def find_file(name: Path) -> Path:
    """Return the GGUF file that a path or a model's name means. Raises ManifestError for an unknown name."""
    path = expanded(name)
    return path if path.exists() or is_path(str(name)) else _named(str(name))[0]


def find_head(name: Path) -> Path:
    """Return the file or folder of a drafting head: a path, or a name of `edgedecode list`."""
    path = expanded(name)
    if path.exists() or is_path(name.as_posix()):
        return path
    from .named_models import head_named

    return head_named(name.as_posix()) or path


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
    from .stored import named  # late: stores are searched
    from .stores import stored_models

    models = stored_models()
    here = bool(named(word, models))
    if here or not re.search(r"[:\d]", word):
        return here
    from .named_models import near_names

    return bool(near_names(word, models))


def could_be_pack(word: str) -> bool:
    """Return whether a word may mean a model where one is expected: also any folder, path, or part of a name."""
    if names_pack(word) or re.fullmatch(r"\S*/\S*", word):
        return True
    with suppress(OSError):
        if expanded(word).is_dir():
            return True
    if not _WORD.fullmatch(word):
        return False
    from .named_models import near_names
    from .stores import stored_models

    return bool(near_names(word, stored_models()))


def _found(name: str | Path | None) -> tuple[Path, str]:
    """Return a GGUF file or a pack's folder, and the model's name."""
    if name is None or (str(name) == BUNDLED and not (Path(name) / MANIFEST_NAME).is_file()):
        if not BUNDLED_PACK.is_dir():
            raise ManifestError("this installation has no bundled pack: give one with -m, or run `make pack`")
        return BUNDLED_PACK, BUNDLED
    if name == "":
        raise ManifestError("the name of the pack is empty: give a folder, a file, or a model's name")
    path = expanded(name)
    with suppress(OSError):  # a name that no file can have
        if path.exists():
            return _only_model(path), path.stem
    return _named(name)


def _only_model(path: Path) -> Path:
    """Return the GGUF file of a folder that holds one and is no pack, else the path itself."""
    if not path.is_dir() or (path / MANIFEST_NAME).is_file():
        return path
    from .stored import is_model_name

    models = sorted(file for file in path.glob("*.[gG][gG][uU][fF]") if file.is_file() and is_model_name(file.name))
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:6])
        raise ManifestError(f"{path} holds {len(models)} GGUF models ({names}): give the path of one")
    return models[0] if models else path


def _is_model_file(path: Path) -> bool:
    with suppress(OSError):
        return is_gguf(path) or (path.is_file() and path.name.startswith("sha256-"))
    return False


def _named(name: str | Path) -> tuple[Path, str]:
    from .named_models import model_named  # late: stores, packages and the hub are asked

    return model_named(name)
