"""The verb `rm`: remove a model that `pull` downloaded, and what was prepared of it."""

from argparse import ArgumentParser, Namespace

from edgedecode.commands import Command, add_json, print_json
from edgedecode.text.printable import shown


class RmCommand:
    """Only the library is changed: models of other programs and packages, and other folders, stay as they are."""

    name = "rm"
    help = "remove a pulled model"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="NAME", help="a model in the library, by its name in `edgedecode list`")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        from edgedecode.library.removal import removable, remove
        from edgedecode.memory.sizes import format_nbytes

        model = removable(arguments.model)
        nbytes = model.nbytes
        remove(model)
        print(shown(f"removed {model.name}: {format_nbytes(nbytes, 0)}, {model.path}"))
        if arguments.json:
            print_json({"name": model.name, "path": str(model.path), "nbytes": nbytes})
        return 0


command: Command = RmCommand()
