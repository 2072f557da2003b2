"""The verb `bench`: plain and speculative decoding on the same prompts in one run. Engines load when it runs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from edgedecode.apps.verb_options import add_pack_options
from edgedecode.commands import Command, name_list, positive_count, real_number, seed, whole_number
from edgedecode.decoding.policy import MAX_DRAFT
from edgedecode.export.cli.plot_file import check_plot

from .peers.peer import PEERS

__all__ = ["command"]

REPETITIONS = 9
SWEPT = 12
"""Budgets of a memory sweep."""
QUICK_REPETITIONS = 3
"""Of a quick look at a widened pack, whose tokens take ten times as long as the bundled pack's."""


class BenchCommand:
    """Tables first; with --json one line with every figure last."""

    name = "bench"
    help = "measure plain and speculative decoding, interleaved, on this machine"

    def configure(self, parser: ArgumentParser) -> None:
        kinds = parser.add_argument_group("what is measured (default: plain decoding and the scheduler, by family)")
        kind = kinds.add_mutually_exclusive_group()
        kind.add_argument("--overhead", action="store_true", help="host work per token and round, and bare loops")
        kind.add_argument(
            "--calibrate", action="store_true", help="what passes cost here, in full, for each length of context"
        )
        kind.add_argument(
            "--draws", action="store_true", help="drawing a token from a row of 151,936 logits, at its slowest"
        )
        kind.add_argument(
            "--memory-sweep",
            nargs="?",
            type=_budget_count,
            const=SWEPT,
            metavar="N",
            help=f"memory peaks of a chat under N budgets ({SWEPT}), from the smallest to unlimited, on each engine; "
            "exits with 1 where one was not kept",
        )
        kind.add_argument("--replay", metavar="TRACE", help="whether a recorded trace gives the same plans again")
        _add_peer_options(parser)
        parser.add_argument(
            "--scale",
            metavar="SIZE",
            help="widen the pack first, until its target weighs SIZE (300MB): same text, the cost of a real model",
        )
        what = parser.add_argument_group("prompts and arms")
        what.add_argument("--quick", action="store_true", help="few prompts and short answers: a look of some seconds")
        what.add_argument("--families", type=name_list, metavar="A,B", help="only these task families")
        what.add_argument("--per-family", type=positive_count, metavar="N", help="prompts of each family (default: 5)")
        what.add_argument("--prompts", metavar="FILE", help="jsonl with family and messages, or Spec-Bench's turns")
        what.add_argument(
            "--fixed", action="store_true", help="every drafter at every length too: what was best in hindsight"
        )
        what.add_argument(
            "--drafters",
            type=name_list,
            metavar="A,B",
            help="fixed drafters (default: all the pack can use); as --fixed",
        )
        what.add_argument(
            "--lengths", type=_numbers, metavar="N,N", help="fixed draft lengths (default: 1,2,4,8); as --fixed"
        )
        what.add_argument(
            "--repetitions",
            type=positive_count,
            metavar="N",
            help=f"of every run (default: {REPETITIONS}; {QUICK_REPETITIONS} with --quick --scale)",
        )
        what.add_argument(
            "-n", "--max-tokens", type=positive_count, metavar="N", help="tokens of an answer at most (default: 128)"
        )
        what.add_argument("--temp", type=real_number, metavar="T", help="sample at this temperature (default: greedy)")
        what.add_argument("--top-p", type=real_number, metavar="P", help="with --temp: the likeliest of this mass")
        what.add_argument("--turns", type=positive_count, metavar="N", help="of a memory sweep's chat (default: 32)")
        what.add_argument("--seed", type=seed, default=0, metavar="N", help="of the draws (default: %(default)s)")
        parser.add_argument(
            "--plot",
            type=Path,
            metavar="FILE",
            help="draw S and W of each family, or a memory sweep, to FILE, .svg or .png",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON line")
        add_pack_options(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        _check_peer_options(arguments)
        _check_sweep(arguments)
        if arguments.top_p is not None and not arguments.temp:
            arguments.usage_error("--top-p says what is drawn from: give --temp with it")
        prompts = arguments.drafters, arguments.lengths, arguments.fixed, arguments.temp, arguments.families
        if arguments.draws and (any(prompts) or arguments.prompts is not None or arguments.scale is not None):
            arguments.usage_error("--draws measures rows of its own: leave out what chooses prompts, drafters or packs")
        if arguments.scale is not None and arguments.replay is not None:
            arguments.usage_error("--replay runs no model: leave out --scale")
        if arguments.plot is not None:
            _check_plot(arguments)
        if arguments.repetitions is None:
            arguments.repetitions = QUICK_REPETITIONS if arguments.quick and arguments.scale else REPETITIONS
        from .kinds import run

        return run(arguments)


def _add_peer_options(parser: ArgumentParser) -> None:
    """Add what names the peers."""
    peers = parser.add_argument_group("other engines, in the same run")
    peers.add_argument(
        "--against",
        type=name_list,
        default=[],
        metavar="A,B",
        help=f"compare plain and scheduled decoding with other engines' plain and speculative decoding instead: "
        f"{', '.join(PEERS)}",
    )


def _check_peer_options(arguments: Namespace) -> None:
    """End with a usage error where options do not go together."""
    if arguments.against and arguments.overhead:
        arguments.usage_error("--against compares whole requests and --overhead bare loops: leave one of the two out")
    if arguments.against and (arguments.drafters or arguments.lengths or arguments.fixed):
        arguments.usage_error("--against compares what the scheduler chooses: leave --drafters and --lengths out")
    others = arguments.draws, arguments.calibrate, arguments.replay, arguments.temp, arguments.memory_sweep
    if arguments.against and any(others):
        arguments.usage_error("--against measures greedy answers to prompts and nothing else: give it alone")


def _check_sweep(arguments: Namespace) -> None:
    """End with a usage error where options mean nothing to a memory sweep, or to anything else."""
    if arguments.memory_sweep is None:
        if arguments.turns is not None:
            arguments.usage_error("--turns says how long a memory sweep's chats are: give --memory-sweep with it")
        return
    if arguments.memory is not None:
        arguments.usage_error("--memory-sweep chooses the budgets: leave --memory out")
    names = "families", "per_family", "prompts", "drafters", "lengths", "fixed", "temp", "repetitions", "quick"
    if given := [name for name in names if getattr(arguments, name)]:
        option = given[0].replace("_", "-")
        arguments.usage_error(f"--memory-sweep runs a chat of its own, the same each time: leave --{option} out")


def _budget_count(text: str) -> int:
    return whole_number(text, least=2, most=1000)


def _check_plot(arguments: Namespace) -> None:
    """End with a usage error where no families are measured. Raises what `check_plot` does."""
    others = arguments.against, arguments.overhead, arguments.calibrate, arguments.draws, arguments.replay is not None
    if any(others):
        arguments.usage_error("--plot draws the families' speed-ups, which this run does not measure: leave it out")
    check_plot(arguments.plot)


def _numbers(text: str) -> list[int]:
    try:
        return [whole_number(part.strip(), least=1, most=MAX_DRAFT) for part in text.split(",")]
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}; several are written 1,2,4") from None


command: Command = BenchCommand()
