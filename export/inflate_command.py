"""The verb `inflate`: arguments, progress, tables. The work is done by modules that are loaded to run."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from edgedecode.commands import Command

from .arguments import count, positive
from .quiet import quiet

__all__ = ["inflate"]


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


inflate: Command = InflateCommand()
