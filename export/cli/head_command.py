"""The verb `head`: list, add and remove the drafting head of a pack. Heavy modules are imported only when it runs."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgedecode.commands import Command, add_json, print_json
from edgedecode.errors import EdgeDecodeError
from edgedecode.gguf.architectures import ASSISTANT, BLOCK_HEAD, MTP
from edgedecode.library.find import find_head, find_pack
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.manifest import Manifest
from edgedecode.text.printable import shown

from .common import quiet


class HeadCommand:
    """`head list`, `head add` and `head remove`."""

    name = "head"
    help = "list, add or remove the drafting head of a pack (EAGLE-3, MTP, DSpark, DFlash)"

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
        add.add_argument(
            "source",
            metavar="SOURCE",
            type=Path,
            help="folder of the head or of a model with MTP, a GGUF file, or a name after `pull`",
        )
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
                report = put_head(root, arguments.source, bits=arguments.bits)
            elif arguments.action == "remove":
                from ..heads.pack_head import remove_head

                removed = remove_head(root)
                print(shown(f"removed the head {removed.source} from {root}"))
                report = {}
            else:
                manifest = Manifest.load(root)
                print(shown(_line(manifest)))
                report = {} if manifest.head is None else asdict(manifest.head)
        if arguments.json:
            print_json(report)
        return 0


def put_head(root: Path, source: Path, *, bits: int | None = None) -> dict[str, Any]:
    """Add a head, print what it is, and return it as JSON values. One that may be another target's is tried."""
    from ..heads.pack_head import add_head

    added = add_head(root, find_head(source), bits=bits)
    for line in (f"{added.entry.source}: {_line(Manifest.load(root))}", *added.notes):
        print(shown(line))
    return asdict(added.entry) | ({"accepted": _accepted(root)} if added.doubtful else {})


def _accepted(root: Path) -> tuple[float, ...]:
    """Print and return the share of a new head's drafts that the target accepts."""
    from ..heads.head_trial import accepted_shares
    from .display import live_stages

    try:
        with live_stages() as stages:
            shares = accepted_shares(root, stages)
    except EdgeDecodeError as error:
        print(shown(f"its acceptance cannot be measured here: {error}"))
        return ()
    said = ", ".join(f"{share:.0%}" for share in shares)
    print(f"accepted of its first, second and third tokens: {said}; `edgedecode head remove` removes it")
    return shares


def _line(manifest: Manifest) -> str:
    head = manifest.head
    if head is None:
        return f"{manifest.name} has no drafting head: `edgedecode head add PACK SOURCE` adds one"
    size = format_nbytes(manifest.files[head.gguf].nbytes)
    layers = ", ".join(map(str, head.taps))
    read = {
        MTP.name: "what follows the final norm (MTP)",
        ASSISTANT.name: "the target's keys and values",
        BLOCK_HEAD.name: f"the outputs of layers {', '.join(str(layer - 1) for layer in head.taps)}",
    }.get(head.architecture, f"the inputs of layers {layers}")
    return f"{head.parameters / 1e6:.1f}M parameters in {size}, {head.rows} ids, reads {read}; licence: {head.license}"


head: Command = HeadCommand()
