"""The verb `head`: list, add and remove the drafting head of a pack. Heavy modules are imported only when it runs."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from edgedecode.commands import Command, add_json, print_json
from edgedecode.library.find import find_pack
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.manifest import Manifest
from edgedecode.text.printable import shown

from .common import quiet


class HeadCommand:
    """`head list`, `head add` and `head remove`."""

    name = "head"
    help = "list, add or remove the drafting head of a pack (EAGLE-3)"

    def configure(self, parser: ArgumentParser) -> None:
        add_json(parser)
        parser.set_defaults(pack=None)
        actions = parser.add_subparsers(dest="action", metavar="ACTION")
        listing = actions.add_parser("list", help="show a pack's head (default)", allow_abbrev=False)
        listing.add_argument(
            "pack", nargs="?", metavar="PACK", help="folder or hub id (default: demo, the bundled pack)"
        )
        add = actions.add_parser("add", help="put a head into a pack", allow_abbrev=False)
        add.add_argument("pack", metavar="PACK", help="folder of the pack")
        add.add_argument("source", metavar="SOURCE", type=Path, help="folder of the head, or its GGUF file")
        add.add_argument(
            "--bits", type=int, choices=(4, 8, 16, 32), help="of its weights (default: those of the target, 4 or 8)"
        )
        remove = actions.add_parser("remove", help="delete the head from a pack", allow_abbrev=False)
        remove.add_argument("pack", metavar="PACK", help="folder of the pack")
        for each in (listing, add, remove):
            add_json(each, inner=True)

    def run(self, arguments: Namespace) -> int:
        root = find_pack(arguments.pack)
        with quiet(debug=arguments.debug):
            if arguments.action == "add":
                from ..heads.pack_head import add_head

                added = add_head(root, arguments.source, bits=arguments.bits)
                if not arguments.json:
                    for line in (f"{added.entry.source}: {_line(Manifest.load(root))}", *added.notes):
                        print(shown(line))
            elif arguments.action == "remove":
                from ..heads.pack_head import remove_head

                removed = remove_head(root)
                if not arguments.json:
                    print(shown(f"removed the head {removed.source} from {root}"))
            elif not arguments.json:
                print(shown(_line(Manifest.load(root))))
        if arguments.json:
            found = Manifest.load(root).head
            print_json({} if found is None else asdict(found))
        return 0


def _line(manifest: Manifest) -> str:
    head = manifest.head
    if head is None:
        return f"{manifest.name} has no drafting head: `edgedecode head add PACK SOURCE` adds one"
    size = format_nbytes(manifest.files[head.gguf].nbytes)
    layers = ", ".join(map(str, head.taps))
    return (
        f"{head.parameters / 1e6:.1f}M parameters in {size}, {head.rows} ids, reads the inputs of layers {layers}; "
        f"licence: {head.license}"
    )


head: Command = HeadCommand()
