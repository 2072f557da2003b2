"""The verbs `export` and `inflate`: arguments, progress, tables. The work is done by modules that are loaded to run."""

from __future__ import annotations

import json
import logging
import signal
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from edgedecode.commands import Command

from .compare_command import add_comparison, check_comparison, run_comparison
from .recipe_options import BITS, add_rounding, read_recipe

if TYPE_CHECKING:
    from .pair import PairRequest
    from .report import Report

__all__ = ["export", "inflate"]


class ExportCommand:
    """A pair of Hugging Face models becomes a pack."""

    name = "export"
    help = "make a pack of a target model and a draft model"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("--target", required=True, metavar="MODEL", help="folder or hub id of the large model")
        parser.add_argument("--draft", metavar="MODEL", help="folder or hub id of the small model of the same family")
        parser.add_argument(
            "--out", type=Path, metavar="PACK", help="folder to make; must not exist (needed to make a pack)"
        )
        parser.add_argument("--bits", type=int, choices=BITS, help="width of the weights (default 8)")
        parser.add_argument(
            "--block-size",
            type=int,
            choices=(32, 128),
            help="weights that share a scale, where they have 4 or 8 bits (default 32)",
        )
        parser.add_argument(
            "--head-bits",
            type=int,
            choices=BITS,
            help="width of head and embedding (default: 8 up to --bits 8, then as --bits)",
        )
        add_rounding(parser)
        add_comparison(parser)
        parser.add_argument(
            "--context",
            type=_context,
            metavar="N",
            help="positions to serve (default: the model's own, up to 32768; rotary tables grow with it)",
        )
        parser.add_argument(
            "--rope",
            choices=("short", "long"),
            default="short",
            help="which factors a long-rope model gets: short ones end its context where it would change them, long "
            "ones serve all of it and are wrong for short texts (default short)",
        )
        parser.add_argument("--name", help="the pack's name (default: its folder's)")
        parser.add_argument("--license", help="licence of the base models, where their folders do not say")
        parser.add_argument(
            "--noise-positions",
            type=_count,
            default=2000,
            metavar="N",
            help="positions the kernels' noise is measured on (default 2000; 0: not measured)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="check everything that needs no weights and forecast the rest"
        )
        parser.add_argument("--no-cache", action="store_true", help="keep nothing for a rerun after an interruption")
        parser.add_argument("--json", action="store_true", help="end with one JSON line")
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        from .frameworks import require_frameworks

        if arguments.compare:
            check_comparison(arguments)
            require_frameworks()
            with _quiet(debug=arguments.debug):
                compared = run_comparison(arguments)
            if arguments.json:
                print(json.dumps(compared))
            return 0
        recipe = read_recipe(arguments)
        require_frameworks()
        from .pair import PairRequest
        from .span import Span

        request = PairRequest(
            target=arguments.target,
            draft=arguments.draft,
            out=arguments.out or Path(),  # a dry run may have none
            recipe=recipe,
            calibration_text=arguments.calibrate_text,
            name=arguments.name,
            license=arguments.license,
            span=Span(context=arguments.context, long_rope=arguments.rope == "long"),
            noise_positions=arguments.noise_positions,
            cache=not arguments.no_cache,
        )
        with _quiet(debug=arguments.debug):
            report = _dry_run(request, arguments) if arguments.dry_run else _export(request)
        if arguments.json:
            print(json.dumps(report))
        return 0


def _export(request: PairRequest) -> Report:
    from .pair import export_pair
    from .report import LiveDisplay, pair_report, show_pair
    from .stages import Stages

    with LiveDisplay() as display:
        stages = Stages(display)
        manifest = export_pair(request, stages)
    show_pair(manifest, stages.records, out=request.out)
    return pair_report(manifest, stages.records, out=request.out)


def _dry_run(request: PairRequest, arguments: Namespace) -> Report:
    from .forecast import forecast_pair
    from .forecast_report import forecast_report, show_forecast

    forecast = forecast_pair(request, out=arguments.out)
    show_forecast(forecast)
    return forecast_report(forecast)


class InflateCommand:
    """A model becomes one of the same function that costs what a larger one costs."""

    name = "inflate"
    help = "widen a model without changing what it computes, to measure at a larger size"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="folder or hub id of the model to widen")
        parser.add_argument(
            "--weights-mb",
            required=True,
            type=_positive,
            metavar="MB",
            help="size of its int4 weights in a pack (block 32, 8-bit head), in millions of bytes",
        )
        parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder to make; must not exist")
        parser.add_argument("--seed", type=_count, default=0, help="seed of the new units' weights (default 0)")
        parser.add_argument("--json", action="store_true", help="end with one JSON line")

    def run(self, arguments: Namespace) -> int:
        from .frameworks import require_frameworks

        require_frameworks()
        from .inflate import inflate_model
        from .report import LiveDisplay, inflation_report, show_inflation
        from .stages import Stages

        with _quiet(debug=arguments.debug), LiveDisplay() as display:
            stages = Stages(display)
            result = inflate_model(
                arguments.model,
                arguments.out,
                weights_nbytes=round(arguments.weights_mb * 1e6),
                seed=arguments.seed,
                stages=stages,
            )
        show_inflation(result, stages.records)
        if arguments.json:
            print(json.dumps(inflation_report(result, stages.records)))
        return 0


@contextmanager
def _quiet(*, debug: bool) -> Iterator[None]:
    """Let libraries speak only with --debug, and make a polite kill an exception, so that nothing is left behind."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    logging.getLogger("edgedecode").setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.getLogger("transformers").setLevel(logging.INFO if debug else logging.ERROR)
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # not the main thread
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _count(text: str) -> int:
    value = _number(text)
    if value < 0 or value != int(value):
        raise ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(value)


def _context(text: str) -> int:
    from .span import LEAST_CONTEXT

    value = _count(text)
    if value < LEAST_CONTEXT:
        raise ArgumentTypeError(f"{text!r} positions are too few: {LEAST_CONTEXT} or more")
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1e9:
        raise ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number") from None


export: Command = ExportCommand()
inflate: Command = InflateCommand()
