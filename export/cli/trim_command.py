"""The verb `trim`, and `export --trim-vocab`. Heavy modules are imported only when it runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, positive_count, print_json

from .common import pack_is_there, quiet

if TYPE_CHECKING:
    from ..trim.trim_pack import TrimRequest
    from .display import Report

_BEST = 0
"""Stands for the best of several sizes, if one is faster, instead of a number of ids."""


class TrimCommand:
    """Adds a draft of a smaller vocabulary to a pack, in addition to the full one, where that is faster."""

    name = "trim"
    help = "add a draft of a smaller vocabulary to a pack, where that is faster than the full draft"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("pack", metavar="PACK", help="folder of the pack to change")
        size = parser.add_mutually_exclusive_group()
        size.add_argument(
            "--size", type=positive_count, metavar="N", help="keep N ids (default: the best of several sizes)"
        )
        size.add_argument("--remove", action="store_true", help="remove the pack's trimmed draft")
        parser.add_argument(
            "--calibrate", type=Path, metavar="FILE.jsonl", help="prompts, one per line (default: the bundled ones)"
        )
        parser.add_argument(
            "--prompts", type=positive_count, metavar="N", help="at most N prompts, from all families in turn"
        )
        parser.add_argument(
            "-n", "--max-tokens", type=positive_count, metavar="N", help="length of an answer (default 128)"
        )
        parser.add_argument("-t", "--threads", type=positive_count, metavar="N", help="threads of the engine")
        add_json(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        with quiet(debug=arguments.debug):
            report = _run(arguments)
        if arguments.json:
            print_json(report)
        return 0


def _run(arguments: Namespace) -> Report:
    from ..trim.trim_pack import TrimRequest, remove_trimmed

    given = {field.name: getattr(arguments, field.name) for field in fields(TrimRequest)}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.remove:
        if others := ", ".join(f"--{name.replace('_', '-')}" for name in given if name != "pack"):
            arguments.usage_error(f"argument --remove: it measures nothing, leave out {others}")
        gone = remove_trimmed(arguments.pack)
        print(f"removed {', '.join(gone)}")
        return {"pack": arguments.pack, "removed": gone}
    return run_trim(TrimRequest(**given))


def run_trim(request: TrimRequest) -> Report:
    """Trim with a progress display, print the result and return it as JSON values."""
    from ..trim.trim_pack import trim_pack
    from .display import live_stages
    from .trim_tables import show_trim, trim_report

    with live_stages() as stages:
        result = trim_pack(request, stages)
    show_trim(result)
    return trim_report(result)


def add_trim(parser: ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--trim-vocab",
        nargs="?",
        const=_BEST,
        type=positive_count,
        metavar="N",
        help="then trim the draft's vocabulary as `edgedecode trim` does: to N ids, or to the best size that is faster",
    )


def check_trim(arguments: Namespace) -> None:
    """Exit with a usage error if no draft is exported that could be trimmed."""
    if arguments.trim_vocab is None:
        return
    if arguments.draft is None:
        arguments.usage_error("argument --trim-vocab: it trims a draft's vocabulary, give --draft")
    if arguments.dry_run:
        arguments.usage_error("argument --trim-vocab: --dry-run makes no pack to trim")


def trim_exported(out: Path, size: int) -> Report:
    """Trim a new pack to `size` ids or `_BEST`; print the result and return it as JSON values."""
    from ..trim.trim_pack import TrimRequest

    with pack_is_there(f"the pack {out} is complete and untrimmed (`edgedecode trim` tries again)"):
        return run_trim(TrimRequest(pack=out, size=size or None))


trim: Command = TrimCommand()
