"""Finds a model by its name, exact, begun or misspelt: on this machine, on the hub, and in packages."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.errors import ManifestError
from edgedecode.user_notices import notice

from .names import BUNDLED, MODEL_FILES, expanded, is_hub_name, is_path, without_hub
from .stored import StoredModel, advice_on_head, named
from .stores import stored_models

if TYPE_CHECKING:
    from .offers import Offer


def model_named(name: str | Path) -> tuple[Path, str]:
    """Return the GGUF file or the pack's folder of the model of this name, and its name. Raises ManifestError."""
    name = without_hub(name) if isinstance(name, str) else name
    is_file = is_path(str(name)) and not is_hub_name(str(name))
    missing = f"there is no {'file' if Path(name).suffix in MODEL_FILES else 'folder'}"
    if isinstance(name, Path) or (is_file and Path(name).name != name):
        raise ManifestError(f"{missing} {str(name)!r}")
    from edgedecode.pack.hub import hub_pack, hub_pack_folder  # late: a prompt's word is searched in the stores only

    from .offers import fetched
    from .packages import KNOWN

    if hub_pack_folder(name) is not None:
        return hub_pack(name), name
    models = stored_models()
    if found := named(name, models):
        model = one_of(name, found)
        return model.path, model.name
    if is_hub_name(name) or name in KNOWN:
        offer = offer_of(name)
        if offer.is_head:
            raise ManifestError(f"{name} is {advice_on_head(name)}")
        return fetched(offer), name
    if is_file:
        raise ManifestError(f"{missing} {name!r}")
    if len(found := completed(name, models)) == 1:
        notice(f"{name} is completed to {found[0].name} ({found[0].store})")
        return one_of(name, found).path, found[0].name
    near = near_names(name, models)
    hint = f"did you mean {' or '.join(near)}?" if near else "`edgedecode list` lists the models on this machine"
    raise ManifestError(f"{missing} and no model {name!r}, and it is not a hub id (owner/name): {hint}")


def offer_of(word: str) -> "Offer":
    """Return what could be downloaded under a name. Raises ManifestError."""
    if word and expanded(word).exists():
        raise ManifestError(f"{word!r} is a file or a folder here: only what is elsewhere is pulled")
    if is_hub_name(word):
        from .hub_files import hub_offer

        return hub_offer(word)
    from .packages import is_package_name, package_offer

    if is_package_name(word) and not is_path(word):
        return package_offer(word)
    raise ManifestError(f"{word!r} names nothing to download: give a hub id (owner/name) or a package's name")


def pull(word: str) -> tuple[StoredModel, bool]:
    """Return the model of this name, and whether it was downloaded now. Raises ManifestError."""
    word = without_hub(word)
    if word == BUNDLED:
        raise ManifestError(f"{BUNDLED} is the bundled pack, which is here: `edgedecode run {BUNDLED}`")
    from edgedecode.pack.hub import hub_pack_folder

    from .offers import fetched

    here = [model for model in named(word, stored_models()) if not model.problem]
    if here and here[0].path != hub_pack_folder(word):  # which is updated
        return one_of(word, here), False
    path = fetched(offer_of(word))
    return next(model for model in stored_models() if model.path == path), True


def head_named(word: str) -> Path | None:
    """Return the folder or file that may be a drafting head of this name; None: no model, or several, have the name."""
    found = named(word, stored_models())
    return found[0].path if len(found) == 1 else None


def completed(word: str, models: Iterable[StoredModel]) -> list[StoredModel]:
    """Return the models with a name that begins with a word, or else that contains it."""
    plain, found = word.casefold(), list(models)
    begun = [model for model in found if any(name.casefold().startswith(plain) for name in model.names)]
    return begun or [model for model in found if plain in model.name.casefold()]


def near_names(word: str, models: Sequence[StoredModel]) -> list[str]:
    """Return up to three names that were possibly meant."""
    from .packages import KNOWN

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
