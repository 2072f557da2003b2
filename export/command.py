"""The verbs `export` and `inflate`: arguments, progress, tables. The work is done by modules that are loaded to run."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command

from .arguments import count, positive
from .quiet import quiet

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
        parser.add_argument("--bits", type=int, choices=_BITS, help="width of the weights (default 8)")
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
        parser.add_argument("--name", help="the pack's name (default: its folder's)")
        parser.add_argument("--license", help="licence of the base models, where their folders do not say")
        parser.add_argument(
            "--noise-positions",
            type=count,
            default=2000,
            metavar="N",
            help="positions the kernels' noise is measured on (default 2000; 0: not measured)",
        )
        parser.add_argument(
            "--exporter",
            choices=("builder", "optimum"),
            default="builder",
            help="optimum: more architectures, in float, chains only, in an environment of its own (default builder)",
        )
        parser.add_argument(
            "--make-environment",
            action="store_true",
            help="let --exporter optimum make its environment in the cache folder: downloads some 300 MB",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON line")
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        from .frameworks import require_frameworks

        if arguments.exporter == "optimum":
            return _run_optimum(arguments)
        if arguments.make_environment:
            arguments.usage_error("argument --make-environment: it belongs to --exporter optimum")
        recipe = _recipe(arguments)
        if arguments.block_size is not None and not recipe.quantized:
            arguments.usage_error(f"argument --block-size: {recipe.body.name} weights have no blocks, leave it out")
        require_frameworks()
        from .pair import PairRequest, export_pair
        from .report import LiveDisplay, pair_report, show_pair
        from .stages import Stages

        request = PairRequest(
            target=arguments.target,
            draft=arguments.draft,
            out=arguments.out,
            recipe=recipe,
            name=arguments.name,
            license=arguments.license,
            noise_positions=arguments.noise_positions,
        )
        with quiet(debug=arguments.debug), LiveDisplay() as display:
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
            type=positive,
            metavar="MB",
            help="size of its int4 weights in a pack (block 32, 8-bit head), in millions of bytes",
        )
        parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder to make; must not exist")
        parser.add_argument("--seed", type=count, default=0, help="seed of the new units' weights (default 0)")
        parser.add_argument("--json", action="store_true", help="end with one JSON line")

    def run(self, arguments: Namespace) -> int:
        from .frameworks import require_frameworks

        require_frameworks()
        from .inflate import inflate_model
        from .report import LiveDisplay, inflation_report, show_inflation
        from .stages import Stages

        with quiet(debug=arguments.debug), LiveDisplay() as display:
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


def _run_optimum(arguments: Namespace) -> int:
    """Export with optimum, whose graphs hold floats: options that quantize are refused, not dropped."""
    from .frameworks import require_frameworks

    for option in ("bits", "block_size", "head_bits"):
        if getattr(arguments, option) is not None:
            arguments.usage_error(
                f"argument --{option.replace('_', '-')}: --exporter optimum stores floats, leave it out"
            )
    require_frameworks("import")
    from .import_pair import ImportRequest
    from .optimum import OptimumRequest, export_with_optimum
    from .report import LiveDisplay, pair_report, show_pair
    from .stages import Stages

    importing = ImportRequest(
        target=Path(),
        draft=None,
        out=arguments.out,
        name=arguments.name,
        license=arguments.license,
        noise_positions=arguments.noise_positions,
    )
    request = OptimumRequest(arguments.target, arguments.draft, arguments.make_environment, importing)
    with quiet(debug=arguments.debug), LiveDisplay() as display:
        stages = Stages(display)
        manifest = export_with_optimum(request, stages)
    show_pair(manifest, stages.records, out=arguments.out)
    if arguments.json:
        print(json.dumps(pair_report(manifest, stages.records, out=arguments.out)))
    return 0


def _recipe(arguments: Namespace) -> Recipe:
    from .quantize import Scheme
    from .recipe import Recipe

    bits = arguments.bits or 8
    head = arguments.head_bits or (8 if bits <= 8 else bits)
    block_size = arguments.block_size or 32
    return Recipe(*(Scheme(width, block_size if width <= 8 else 0) for width in (bits, head)))


export: Command = ExportCommand()
inflate: Command = InflateCommand()
