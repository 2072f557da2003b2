"""Finds the pack that a name means: one that is here, or one that is downloaded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.pack.hub import BUNDLED_PACK, hub_pack, hub_pack_folder
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.user_notices import notice

from .file_packs import file_pack, without_links
from .hub_files import hub_offer
from .names import BUNDLED, MODEL_FILES, completed, expanded, is_gguf, is_hub_name, is_path, named, near_names, one_of
from .offers import Offer, fetched
from .packages import KNOWN, is_package_name, package_offer
from .stored import StoredModel, is_model_name
from .stores import stored_models


def find_pack(name: str | Path | None, draft: str | Path | None = None) -> Path:
    """Return the folder of the pack that a name means: a folder, a GGUF file, a model on this machine, or a hub id.

    None, `demo`: the bundled pack. draft: the draft model; both are then GGUF files. What is not here is downloaded, a
    pack of the hub also updated. Raises ManifestError with one line that says what was tried.
    """
    path, title = _found(name)
    if draft is None:
        return file_pack(path, title=title) if _is_model_file(path) else without_links(path)
    helper, _ = _found(draft)
    for each in (path, helper):
        if not _is_model_file(each):
            raise ManifestError(f"--draft pairs two GGUF files, and {each} is none: a pack holds its draft itself")
    return file_pack(path, draft=helper, title=title)


def find_file(name: Path) -> Path:
    """Return the GGUF file that a path or a model's name means. Raises ManifestError for an unknown name."""
    path = expanded(name)
    return path if path.exists() or is_path(str(name)) else _by_name(str(name))[0]


def offer_of(word: str) -> Offer:
    """Return what could be downloaded under a name. Raises ManifestError."""
    if word and expanded(word).exists():
        raise ManifestError(f"{word!r} is a file or a folder here: only what is elsewhere is pulled")
    if is_hub_name(word):
        return hub_offer(word)
    if is_package_name(word) and not is_path(word):
        return package_offer(word)
    raise ManifestError(f"{word!r} names nothing to download: give a hub id (owner/name) or a package's name")


def pull(word: str) -> tuple[StoredModel, bool]:
    """Return the model of this name, and whether it was downloaded now. Raises ManifestError."""
    if word == BUNDLED:
        raise ManifestError(f"{BUNDLED} is the bundled pack, which is here: `edgedecode run {BUNDLED}`")
    here = [model for model in named(word, stored_models()) if not model.problem]
    if here and here[0].path != hub_pack_folder(word):  # which is updated
        return one_of(word, here), False
    path = fetched(offer_of(word))
    return next(model for model in stored_models() if model.path == path), True


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
    return _by_name(name)


def _only_model(path: Path) -> Path:
    """Return the GGUF file of a folder that holds one and is no pack, else the path itself."""
    if not path.is_dir() or (path / MANIFEST_NAME).is_file():
        return path
    models = sorted(file for file in path.glob("*.[gG][gG][uU][fF]") if file.is_file() and is_model_name(file.name))
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:6])
        raise ManifestError(f"{path} holds {len(models)} GGUF models ({names}): give the path of one")
    return models[0] if models else path


def _by_name(name: str | Path) -> tuple[Path, str]:
    is_file = is_path(str(name)) and not is_hub_name(str(name))
    missing = f"there is no {'file' if Path(name).suffix in MODEL_FILES else 'folder'}"
    if isinstance(name, Path) or (is_file and Path(name).name != name):
        raise ManifestError(f"{missing} {str(name)!r}")
    if hub_pack_folder(name) is not None:
        return hub_pack(name), name
    models = stored_models()
    if found := named(name, models):
        model = one_of(name, found)
        return model.path, model.name
    if is_hub_name(name) or name in KNOWN:
        return fetched(offer_of(name)), name
    if is_file:
        raise ManifestError(f"{missing} {name!r}")
    if len(found := completed(name, models)) == 1:
        notice(f"{name} is completed to {found[0].name} ({found[0].store})")
        return one_of(name, found).path, found[0].name
    near = near_names(name, models)
    hint = f"did you mean {' or '.join(near)}?" if near else "`edgedecode list` lists the models on this machine"
    raise ManifestError(f"{missing} and no model {name!r}, and it is not a hub id (owner/name): {hint}")


def _is_model_file(path: Path) -> bool:
    with suppress(OSError):
        return is_gguf(path) or (path.is_file() and path.name.startswith("sha256-"))
    return False
