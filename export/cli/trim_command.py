"""The verb `trim`, and `export --trim-vocab`. Heavy modules are imported only when it runs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, positive_count, print_json, real_number, seed
from edgedecode.plot_file import check_plot, write_plot

from .common import notices_shown, pack_is_there, quiet, refuse_others

if TYPE_CHECKING:
    from ..trim.sweep import TrimRequest
    from .display import Report

_REMOVING = ("pack", "remove", "runtime", "threads")
"""Options that `trim --remove` accepts."""
_BEST = 0
"""Stands for the best of several sizes, if one is faster, instead of a number of ids."""
_ENGINE = "onnx"
"""The engine that runs the exporter's own graphs."""


class TrimCommand:
    """Adds a smaller vocabulary to a pack's draft, in addition to the full one, where that is faster."""

    name = "trim"
    help = "give a pack's draft a smaller vocabulary, and report where that is faster and where slower"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("pack", metavar="PACK", help="folder of the pack to change")
        _add_size(parser)
        _add_calibration(parser)
        parser.add_argument("--report", action="store_true", help="also time complete answers on the trimmed pack")
        parser.add_argument("--plot", type=Path, metavar="FILE", help="plot coverage and speed by size, .svg or .png")
        add_json(parser)
        parser.add_argument("--runtime", metavar="NAME", help="engine to measure on (default: as for `generate`)")
        parser.add_argument("-t", "--threads", type=positive_count, metavar="N", help="threads of the engine")
        parser.set_defaults(usage_error=parser.error, default_of=parser.get_default)

    def run(self, arguments: Namespace) -> int:
        with quiet(debug=arguments.debug):
            report = _run(arguments)
        if arguments.json:
            print_json(report)
        return 0


def _add_size(parser: ArgumentParser) -> None:
    size = parser.add_argument_group("how small").add_mutually_exclusive_group()
    size.add_argument("--size", type=positive_count, metavar="N", help="keep N ids, even if slower")
    size.add_argument(
        "--coverage",
        type=_share,
        metavar="SHARE",
        help="the best size with at least this coverage of held-out text (default 0.99)",
    )
    size.add_argument("--sweep", action="store_true", help="try several sizes and keep the best: the default")
    size.add_argument("--remove", action="store_true", help="remove the pack's trim")


def _add_calibration(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what is counted")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--calibrate", type=Path, metavar="FILE.jsonl", help="prompts, one per line (default: the bundled ones)"
    )
    source.add_argument(
        "--text", type=Path, metavar="FILE", help="text to count directly, or .jsonl with messages and answers"
    )
    group.add_argument(
        "--prompts", type=positive_count, metavar="N", help="at most N prompts, from all families in turn"
    )
    group.add_argument(
        "--answers",
        type=positive_count,
        metavar="N",
        help="answers per prompt: one greedy, the others sampled (default 2)",
    )
    group.add_argument("-n", "--max-tokens", type=positive_count, metavar="N", help="length of an answer (default 128)")
    group.add_argument(
        "--seed", type=seed, metavar="N", help="seed of sampled answers and of the held-out split (default 0)"
    )
    group.add_argument(
        "--categories",
        type=Path,
        metavar="FILE.jsonl",
        help="texts to report on: category, messages, optionally an answer (default: code, math, prose, structured, "
        "multilingual)",
    )
    group.add_argument(
        "--per-category", type=positive_count, metavar="N", help="at most N texts per category (default 16)"
    )


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
    """Trim with a progress display, print the result and return it as JSON values."""
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
    finally:  # also after an interrupt: the pack is trimmed, and the results would be lost
        show_trim(result)
        if plot is not None:
            write_plot(plot, sweep_figure(result))
    return trim_report(result)


def _remove(arguments: Namespace) -> Report:
    """Remove a trim, without measuring."""
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
    from ..trim.sweep import TrimRequest

    with pack_is_there(f"the pack {out} is complete and untrimmed (`edgedecode trim` tries again)"):
        return run_trim(TrimRequest(pack=out, size=size or None, runtime=_ENGINE))


trim: Command = TrimCommand()
