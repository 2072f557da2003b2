"""Removes models that `pull` downloaded, and what was prepared of them. Nothing else on this machine is removed."""

import shutil

from edgedecode.cache import area
from edgedecode.errors import InputError

from .named_models import near_names, one_of
from .names import BUNDLED, expanded
from .prepared import is_in_use, remove_prepared
from .stored import Store, StoredModel, named
from .stores import stored_models


def removable(name: str) -> StoredModel:
    """Return the pulled model of a name, which no process has open. Raises InputError or ManifestError."""
    model = pulled_model(name)
    if is_in_use(model):
        raise InputError(f"{model.name} is in use: end the process that runs it, then remove it")
    return model


def remove(model: StoredModel) -> None:
    """Remove a model's files. Raises OSError."""
    from edgedecode.pack.pack_lock import changing

    remove_prepared(model)
    if model.path.is_dir():
        with changing(model.path):
            shutil.rmtree(model.path)
        return
    model.path.unlink()
    folder = model.path.parent
    while folder != area("models") and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def pulled_model(name: str) -> StoredModel:
    """Return the pulled model of a name. Raises InputError or ManifestError."""
    if name == BUNDLED:
        raise InputError("the bundled pack belongs to the installation: it is not removed")
    models = stored_models()
    own = [model for model in models if model.store is Store.LIBRARY]
    if found := named(name, own):
        return found[0] if len(found) == 1 else one_of(name, found)
    if others := named(name, models):
        raise InputError(f"{others[0]} was not pulled, and is left as it is: remove it where it came from")
    if name and expanded(name).exists():
        raise InputError(f"{name!r} is a file or a folder of yours, and is left as it is: `rm` removes what was pulled")
    names = [model.name for model in own]
    near = [each for each in near_names(name, own) if each in names] or names[:6]
    has = f"it has {', '.join(near)}" if near else "it is empty"
    raise InputError(f"the library has no model {name!r}: {has}")
