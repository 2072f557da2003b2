"""The verb `adapter`: list, add and remove the LoRA adapters of a pack."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict
from pathlib import Path
from shlex import join

from edgedecode.adapters.adapter_change import add_adapter, remove_adapter
from edgedecode.commands import Command, add_json, print_json
from edgedecode.library.find import find_pack
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.entries import DRAFT_ADAPTER
from edgedecode.pack.manifest import Manifest
from edgedecode.text.printable import counted


class AdapterCommand:
    """`adapter list`, `adapter add` and `adapter remove`."""

    name = "adapter"
    help = "list, add or remove the LoRA adapters of a pack"

    def configure(self, parser: ArgumentParser) -> None:
        add_json(parser)
        parser.set_defaults(pack=None)
        actions = parser.add_subparsers(dest="action", metavar="ACTION")
        listing = actions.add_parser("list", help="list a pack's adapters (default)", allow_abbrev=False)
        listing.add_argument(
            "pack", nargs="?", metavar="PACK", help="folder or hub id (default: demo, the bundled pack)"
        )
        add_json(listing, inner=True)
        add = actions.add_parser("add", help="copy an adapter into a pack", allow_abbrev=False)
        add.add_argument("pack", metavar="PACK", help="folder of the pack")
        add.add_argument(
            "source",
            metavar="NAME=SOURCE",
            type=_named_source,
            help="the adapter's name in the pack, and the folder that PEFT saved, or a GGUF file; "
            "draft:NAME: an adapter of the draft model, which drafts with it where --adapter NAME is used",
        )
        remove = actions.add_parser("remove", help="delete an adapter from a pack", allow_abbrev=False)
        remove.add_argument("pack", metavar="PACK", help="folder of the pack")
        remove.add_argument("adapter_name", metavar="NAME", help="the adapter's name in the pack")
        add_json(add, inner=True)
        add_json(remove, inner=True)

    def run(self, arguments: Namespace) -> int:
        root = find_pack(arguments.pack)
        if arguments.action == "add":
            name, source = arguments.source
            entry = add_adapter(root, name, source)
            activated = ", active from its invocation tokens on" if entry.invocation else ""
            kinds = counted(len(entry.modules), "kind")
            print(f"{name}: rank {entry.rank}, {kinds} of projections{activated}; use it with")
            words = ("-m", arguments.pack, "--adapter", name.removeprefix(DRAFT_ADAPTER))
            print(f"edgedecode generate {join(words)} PROMPT")
        elif arguments.action == "remove":
            remove_adapter(root, arguments.adapter_name)
            print(f"removed {arguments.adapter_name} from {root}")
        else:
            _list(Manifest.load(root))
        if arguments.json:
            print_json({name: asdict(each) for name, each in Manifest.load(root).adapters.items()})
        return 0


def _list(manifest: Manifest) -> None:
    from rich.table import Table

    from ..terminal import table_console

    table = Table(*("adapter", "for", "rank", "alpha", "projections", "active from", "size", "engines"))
    for name, each in manifest.adapters.items():
        listed = [manifest.files[file].nbytes for file in (each.file, each.config) if file in manifest.files]
        model = manifest.models[each.role]
        engines = ["onnx"] * model.takes_adapters + ["llama"] * bool(model.gguf or model.gguf_plan)
        start = "its invocation tokens" if each.invocation else "the first token"
        facts = (name, each.role, str(each.rank), f"{each.alpha:g}", ", ".join(each.modules), start)
        table.add_row(*facts, format_nbytes(sum(listed)), ", ".join(engines))
    console = table_console()
    if manifest.adapters:
        console.print(table)
    else:
        console.print(f"{manifest.name} has no adapters: `edgedecode adapter add PACK NAME=SOURCE` adds one")


def _named_source(text: str) -> tuple[str, Path]:
    name, equals, source = text.partition("=")
    if not name or not equals or not source:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=SOURCE")
    return name, Path(source)


command: Command = AdapterCommand()
