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

from .gguf.engine import K_QUANTS

if TYPE_CHECKING:
    from .recipe import Recipe

__all__ = ["export", "inflate"]

_BITS = (4, 8, 16, 32)


class ExportCommand:
    """A pair of Hugging Face models becomes a pack."""

    name = "export"
    help = "make a pack of a target model and a draft model"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("--target", required=True, metavar="MODEL", help="folder or hub id of the large model")
        parser.add_argument("--draft", metavar="MODEL", help="folder or hub id of the small model of the same family")
        parser.add_argument("--out", required=True, type=Path, metavar="PACK", help="folder to make; must not exist")
        parser.add_argument("--bits", type=int, choices=_BITS, default=8, help="width of the weights (default 8)")
        parser.add_argument(
            "--block-size",
            type=int,
            choices=(32, 128),
            help="weights that share a scale, where they have 4 or 8 bits (default 32)",
        )
        parser.add_argument(
            "--head-bits",
            type=int,
            choices=_BITS,
            help="width of head and embedding (default: 8 up to --bits 8, then as --bits)",
        )
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
        parser.add_argument(
            "--formats",
            type=_formats,
            default=("onnx",),
            metavar="LIST",
            help="what to write: onnx, or onnx,gguf for llama.cpp too, with the very same blocks (default onnx)",
        )
        parser.add_argument(
            "--gguf-type",
            choices=K_QUANTS,
            help="let llama.cpp quantize the GGUF file from the unrounded weights instead (needs llama-cpp-python)",
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
        parser.add_argument("--json", action="store_true", help="end with one JSON line")
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        from .frameworks import require_frameworks

        recipe = _recipe(arguments)
        if arguments.block_size is not None and not recipe.quantized:
            arguments.usage_error(f"argument --block-size: {recipe.body.name} weights have no blocks, leave it out")
        if arguments.gguf_type and "gguf" not in arguments.formats:
            arguments.usage_error("argument --gguf-type: no GGUF file is asked for, add --formats onnx,gguf")
        require_frameworks()
        from .pair import PairRequest, export_pair
        from .report import LiveDisplay, pair_report, show_pair
        from .span import Span
        from .stages import Stages

        request = PairRequest(
            target=arguments.target,
            draft=arguments.draft,
            out=arguments.out,
            recipe=recipe,
            name=arguments.name,
            license=arguments.license,
            span=Span(context=arguments.context, long_rope=arguments.rope == "long"),
            noise_positions=arguments.noise_positions,
            gguf="gguf" in arguments.formats,
            gguf_kind=arguments.gguf_type or "",
        )
        with _quiet(debug=arguments.debug), LiveDisplay() as display:
            stages = Stages(display)
            manifest = export_pair(request, stages)
        show_pair(manifest, stages.records, out=arguments.out)
        if arguments.json:
            print(json.dumps(pair_report(manifest, stages.records, out=arguments.out)))
        return 0


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


def _recipe(arguments: Namespace) -> Recipe:
    from .quantize import Scheme
    from .recipe import Recipe

    bits = arguments.bits
    head = arguments.head_bits or (8 if bits <= 8 else bits)
    block_size = arguments.block_size or 32
    return Recipe(*(Scheme(width, block_size if width <= 8 else 0) for width in (bits, head)))


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


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= {"onnx", "gguf"}:
        raise ArgumentTypeError(f"{text!r} is no list of onnx and gguf")
    if "onnx" not in names:
        raise ArgumentTypeError("a pack holds ONNX graphs, from whose weights the GGUF file is made: give onnx,gguf")
    return names


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
