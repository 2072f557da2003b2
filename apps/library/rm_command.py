"""The verb `rm`: remove a model that `pull` downloaded, and what was prepared of it."""

import shutil
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from edgedecode.cache import area
from edgedecode.commands import Command, add_json, print_json
from edgedecode.errors import InputError
from edgedecode.text.printable import shown

if TYPE_CHECKING:
    from edgedecode.library.stored import StoredModel


class RmCommand:
    """Only the library is changed: models of other programs and packages, and other folders, stay as they are."""

    name = "rm"
    help = "remove a pulled model"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="NAME", help="a model in the library, by its name in `edgedecode list`")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        from edgedecode.library.prepared import is_in_use
        from edgedecode.memory.sizes import format_nbytes

        model = _chosen(arguments.model)
        if is_in_use(model):
            raise InputError(f"{model.name} is in use: end the process that runs it, then remove it")
        nbytes = model.nbytes
        _remove(model)
        print(shown(f"removed {model.name}: {format_nbytes(nbytes, 0)}, {model.path}"))
        if arguments.json:
            print_json({"name": model.name, "path": str(model.path), "nbytes": nbytes})
        return 0


def _chosen(name: str) -> "StoredModel":
    from edgedecode.library.named_models import named, near_names, one_of
    from edgedecode.library.names import BUNDLED, expanded
    from edgedecode.library.stored import Store
    from edgedecode.library.stores import stored_models

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


def _remove(model: "StoredModel") -> None:
    from edgedecode.library.prepared import remove_prepared
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


command: Command = RmCommand()
