"""The verb `trim`, and `export --trim-vocab`. The work is done by modules that are loaded to run."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, positive_count, real_number, seed

from .common import notices_shown, pack_is_there, quiet, refuse_others
from .plot_file import check_plot, write_plot

if TYPE_CHECKING:
    from ..trim.sweep import TrimRequest
    from .display import Report

__all__ = ["add_trim", "check_trim", "trim", "trim_exported"]

_REMOVING = ("pack", "remove", "runtime", "threads")
"""What taking a trim out takes."""
_BEST = 0
"""In the place of a number of ids: the best of several sizes, if one wins."""
_ENGINE = "onnx"
"""What the exporter's own graphs run on."""


class TrimCommand:
    """A pack's draft gets a smaller vocabulary beside its whole one, where that pays."""

    name = "trim"
    help = "give a pack's draft a smaller vocabulary, and say where that pays and where it loses"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("pack", metavar="PACK", help="folder of the pack, which is changed")
        _add_size(parser)
        _add_calibration(parser)
        parser.add_argument("--report", action="store_true", help="time whole answers too, on the trimmed pack")
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw coverage and speed by size, .svg or .png")
        parser.add_argument("--json", action="store_true", help="end with one JSON line")
        parser.add_argument("--runtime", metavar="NAME", help="engine to measure on (default: as `generate` takes it)")
        parser.add_argument("-t", "--threads", type=positive_count, metavar="N", help="threads of the engine")
        parser.set_defaults(usage_error=parser.error, default_of=parser.get_default)

    def run(self, arguments: Namespace) -> int:
        with quiet(debug=arguments.debug):
            report = _run(arguments)
        if arguments.json:
            print(json.dumps(report))
        return 0


def _add_size(parser: ArgumentParser) -> None:
    size = parser.add_argument_group("how small").add_mutually_exclusive_group()
    size.add_argument("--size", type=positive_count, metavar="N", help="keep N ids, even if slower")
    size.add_argument(
        "--coverage",
        type=_share,
        metavar="SHARE",
        help="the best size with this coverage of held-out text (default 0.99)",
    )
    size.add_argument("--sweep", action="store_true", help="try several sizes and keep the best: the default")
    size.add_argument("--remove", action="store_true", help="take the pack's trim out again")


def _add_calibration(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what is counted")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--calibrate", type=Path, metavar="FILE.jsonl", help="prompts, a line each (default: the bundled ones)"
    )
    source.add_argument(
        "--text", type=Path, metavar="FILE", help="text to count as it is, or .jsonl with messages and answers"
    )
    group.add_argument("--prompts", type=positive_count, metavar="N", help="at most N prompts, of all families in turn")
    group.add_argument(
        "--answers", type=positive_count, metavar="N", help="to each prompt: one greedy, the others sampled (default 2)"
    )
    group.add_argument("-n", "--max-tokens", type=positive_count, metavar="N", help="of an answer (default 128)")
    group.add_argument("--seed", type=seed, metavar="N", help="of sampled answers, and of what is held out (default 0)")
    group.add_argument(
        "--categories",
        type=Path,
        metavar="FILE.jsonl",
        help="texts to report on: category, messages, perhaps an answer (default: code, math, prose, structured, "
        "multilingual)",
    )
    group.add_argument("--per-category", type=positive_count, metavar="N", help="at most N texts of each (default 16)")


def _run(arguments: Namespace) -> Report:
    if arguments.remove:
        return _remove(arguments)
    if arguments.plot is not None:
        check_plot(arguments.plot)
    from ..trim.sweep import TrimRequest

    given = {field.name: getattr(arguments, field.name) for field in fields(TrimRequest)}
    request = TrimRequest(**{name: value for name, value in given.items() if value is not None})
    return run_trim(request, plot=arguments.plot)


def run_trim(request: TrimRequest, *, plot: Path | None = None) -> Report:
    """Trim with progress, print what was found, and return it as values."""
    from ..stages import Stages
    from ..trim.trim_pack import time_answers, trim_pack
    from .display import LiveDisplay
    from .trim_tables import show_trim, sweep_figure, trim_report

    with LiveDisplay() as display:
        result = trim_pack(request, Stages(display))
    try:
        if request.report:
            with notices_shown(), LiveDisplay() as display:
                result = time_answers(request, result, stages=Stages(display))
    finally:  # after an interrupt too: the pack is trimmed, and what was found would be lost
        show_trim(result)
        if plot is not None:
            write_plot(plot, sweep_figure(result))
    return trim_report(result)


def _remove(arguments: Namespace) -> Report:
    """Take a trim out: nothing is measured."""
    refuse_others(arguments, _REMOVING, message="argument --remove: it measures nothing, leave out {}")
    from ..trim.trim_pack import take_out

    gone = take_out(arguments.pack)
    print(f"removed {', '.join(gone)}")
    return {"pack": arguments.pack, "removed": gone}


def _share(text: str) -> float:
    value = real_number(text)
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"{text!r} is not a share: above 0, up to 1")
    return value


def add_trim(parser: ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--trim-vocab",
        nargs="?",
        const=_BEST,
        type=positive_count,
        metavar="N",
        help="then trim the draft's vocabulary as `edgedecode trim` does: to N ids, or where that wins",
    )


def check_trim(arguments: Namespace) -> None:
    """End with a usage error where nothing is made that could be trimmed."""
    if arguments.trim_vocab is None:
        return
    if arguments.draft is None:
        arguments.usage_error("argument --trim-vocab: it trims a draft's vocabulary, give --draft")
    if arguments.dry_run:
        arguments.usage_error("argument --trim-vocab: --dry-run makes no pack to trim")


def trim_exported(out: Path, size: int) -> Report:
    """Trim a pack that was just made, to `size` ids or `_BEST`; print what was found, and return it as values."""
    from ..trim.sweep import TrimRequest

    with pack_is_there(f"the pack {out} is complete and untrimmed (`edgedecode trim` tries again)"):
        return run_trim(TrimRequest(pack=out, size=size or None, runtime=_ENGINE))


trim: Command = TrimCommand()
