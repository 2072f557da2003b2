"""The verb `calibrate`: measure what switching keeps of the target's accuracy, and save the curve."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace

from edgedecode.commands import Command, add_json, positive_count

from ..verb_options import add_pack_options


class CalibrateCommand:
    """Choose a signal and thresholds on one half of the prompts, and report the other half."""

    name = "calibrate"
    help = "measure the quality of switching between a pack's models, for --mode switch"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--prompts",
            required=True,
            metavar="FILE",
            help="questions as jsonl: {question, answer}, as GSM8K has them or with any answer; {messages, answer}; or "
            "{turns}, as MT-bench has them, correct where the text equals the target's",
        )
        parser.add_argument("--limit", type=positive_count, metavar="N", help="use at most N prompts, evenly by family")
        parser.add_argument(
            "-n",
            "--max-tokens",
            type=positive_count,
            default=128,
            metavar="N",
            help="end each answer after N tokens (default: %(default)s)",
        )
        parser.add_argument(
            "--save",
            action=BooleanOptionalAction,
            default=None,
            help="save the curve in the pack's manifest (default: save if the pack is writable and neither bundled nor "
            "downloaded)",
        )
        add_json(parser)
        add_pack_options(parser)

    def run(self, arguments: Namespace) -> int:
        from .calibrate_run import run_calibration

        return run_calibration(arguments)


command: Command = CalibrateCommand()
