"""The verb `bench`: plain and speculative decoding on the same prompts in one run. Engines load when it runs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from edgedecode.apps.verb_options import add_pack_options
from edgedecode.commands import (
    Command,
    add_json,
    name_list,
    positive_count,
    real_number,
    scaled_name,
    seed,
    whole_number,
)
from edgedecode.decoding.policy import MAX_DRAFT
from edgedecode.plot_file import check_plot

from .peers.peer import PEERS

REPETITIONS = 9
SWEPT = 12
"""Default number of budgets in a memory sweep."""
QUICK_REPETITIONS = 3
"""For --quick --scale: tokens of a widened pack take ten times as long as those of the bundled pack."""


class BenchCommand:
    """Print tables, or with --json all figures in one line."""

    name = "bench"
    help = "measure plain and speculative decoding, interleaved, on this machine"

    def configure(self, parser: ArgumentParser) -> None:
        kinds = parser.add_argument_group("measurement (default: plain and scheduled decoding, by task family)")
        kind = kinds.add_mutually_exclusive_group()
        kind.add_argument(
            "--calibrate",
            action="store_true",
            help="cost of forward passes on this machine at several context lengths, saved for the scheduler",
        )
        kind.add_argument(
            "--structured",
            action="store_true",
            help="answers that follow a JSON Schema: every token masked, forced tokens together, and with drafts, next "
            "to free text; and how many of them have the right values",
        )
        kind.add_argument(
            "--memory-sweep",
            nargs="?",
            type=_budget_count,
            const=SWEPT,
            metavar="N",
            help=f"peak memory of a chat under N budgets (default: {SWEPT}), from the smallest to unlimited, on each "
            "engine; exits with 1 if a chat exceeds its budget",
        )
        kind.add_argument(
            "--place",
            choices=["auto"],
            help="measure the pack's models on every engine and provider of this machine, also the draft on another "
            "one than the target, and keep the fastest placement for --runtime auto",
        )
        _add_peer_options(parser)
        parser.add_argument(
            "--scale",
            metavar="SIZE",
            help="first widen the pack until its target has SIZE, for example 300MB: it generates the same text at the "
            "cost of a larger model",
        )
        what = parser.add_argument_group("prompts and arms")
        what.add_argument("--quick", action="store_true", help="few prompts and short answers: takes some seconds")
        what.add_argument("--families", type=name_list, metavar="A,B", help="only these task families")
        what.add_argument("--per-family", type=positive_count, metavar="N", help="prompts per family (default: 5)")
        what.add_argument(
            "--prompts", metavar="FILE", help="prompts as jsonl with family and messages, or as in Spec-Bench (turns)"
        )
        what.add_argument(
            "--fixed",
            action="store_true",
            help="also measure every drafter at every fixed draft length, to find the best choice in hindsight",
        )
        what.add_argument(
            "--drafters",
            type=name_list,
            metavar="A,B",
            help="drafters to measure at fixed lengths (default: all the pack can use); implies --fixed",
        )
        what.add_argument(
            "--lengths", type=_numbers, metavar="N,N", help="fixed draft lengths (default: 1,2,4,8); implies --fixed"
        )
        what.add_argument(
            "--repetitions",
            type=positive_count,
            metavar="N",
            help=f"repetitions of every run (default: {REPETITIONS}; {QUICK_REPETITIONS} with --quick --scale)",
        )
        what.add_argument(
            "-n", "--max-tokens", type=positive_count, metavar="N", help="end each answer after N tokens (default: 128)"
        )
        what.add_argument("--temp", type=real_number, metavar="T", help="sample at this temperature (default: greedy)")
        what.add_argument(
            "--top-p",
            type=real_number,
            metavar="P",
            help="with --temp: sample from the likeliest tokens up to this mass",
        )
        what.add_argument(
            "--turns", type=positive_count, metavar="N", help="with --memory-sweep: turns of the chat (default: 32)"
        )
        what.add_argument(
            "--adapter",
            type=scaled_name,
            metavar="NAME[:SCALE]",
            help="answer with a LoRA adapter of the pack, plainly and speculatively",
        )
        what.add_argument("--seed", type=seed, default=0, metavar="N", help="seed for sampling (default: %(default)s)")
        parser.add_argument(
            "--plot",
            type=Path,
            metavar="FILE",
            help="plot the speed-ups of each family, or the memory sweep, to FILE (.svg or .png)",
        )
        add_json(parser)
        add_pack_options(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        _check_peer_options(arguments)
        _check_sweep(arguments)
        _check_place(arguments)
        if arguments.top_p is not None and not arguments.temp:
            arguments.usage_error("--top-p applies to sampling: give --temp with it")
        _check_adapter(arguments)
        if arguments.structured and (arguments.drafters or arguments.lengths or arguments.fixed or arguments.against):
            arguments.usage_error(
                "--structured measures scheduled decoding: leave --drafters, --lengths, --fixed and --against out"
            )
        if arguments.plot is not None:
            _check_plot(arguments)
        if arguments.repetitions is None:
            short = arguments.place or (arguments.quick and arguments.scale)
            arguments.repetitions = QUICK_REPETITIONS if short else REPETITIONS
        from .kinds import run

        return run(arguments)


def _add_peer_options(parser: ArgumentParser) -> None:
    """Add the option that names the peers."""
    peers = parser.add_argument_group("comparison with other engines, in the same run")
    peers.add_argument(
        "--against",
        type=name_list,
        default=[],
        metavar="A,B",
        help="compare plain and scheduled decoding with plain and speculative decoding of other engines: "
        f"{', '.join(PEERS)}",
    )


def _check_peer_options(arguments: Namespace) -> None:
    """Exit with a usage error if options contradict --against."""
    if arguments.against and (arguments.drafters or arguments.lengths or arguments.fixed):
        arguments.usage_error("--against compares scheduled decoding: leave --drafters and --lengths out")
    others = arguments.calibrate, arguments.temp, arguments.memory_sweep
    if arguments.against and any(others):
        arguments.usage_error("--against measures only greedy answers to prompts: give it alone")


def _check_sweep(arguments: Namespace) -> None:
    """Exit with a usage error for options that do not apply to a memory sweep, or apply to nothing else."""
    if arguments.memory_sweep is None:
        if arguments.turns is not None:
            arguments.usage_error("--turns is the length of a memory sweep's chats: give --memory-sweep with it")
        return
    if arguments.memory is not None:
        arguments.usage_error("--memory-sweep sets the budgets itself: leave --memory out")
    names = "families", "per_family", "prompts", "drafters", "lengths", "fixed", "temp", "repetitions", "quick"
    if given := [name for name in names if getattr(arguments, name)]:
        option = given[0].replace("_", "-")
        arguments.usage_error(f"--memory-sweep always runs the same chat: leave --{option} out")


def _check_place(arguments: Namespace) -> None:
    """Exit with a usage error for options that contradict --place."""
    given = {"runtime": arguments.runtime, "draft-on": arguments.draft_on, "drafters": arguments.drafters}
    given |= {"provider": arguments.provider != "cpu", "lengths": arguments.lengths, "fixed": arguments.fixed}
    given |= {"adapter": arguments.adapter, "plot": arguments.plot, "against": arguments.against}
    if arguments.place and (named := [name for name, value in given.items() if value]):
        arguments.usage_error(f"--place measures scheduled decoding on every engine: leave --{named[0]} out")


def _check_adapter(arguments: Namespace) -> None:
    """Exit with a usage error for runs that measure no answers of the pack itself."""
    others = arguments.against, arguments.calibrate, arguments.memory_sweep
    if arguments.adapter is not None and any(others):
        arguments.usage_error(
            "--adapter applies to plain and scheduled answers: leave it out, or the other measurement"
        )
    if arguments.adapter is not None and arguments.scale is not None:
        arguments.usage_error("--scale widens a pack without its adapters: leave --adapter out")


def _budget_count(text: str) -> int:
    return whole_number(text, least=2, most=1000)


def _check_plot(arguments: Namespace) -> None:
    """Exit with a usage error if no families are measured. Raises what `check_plot` raises."""
    others = arguments.against, arguments.calibrate
    if any(others) or arguments.structured:
        arguments.usage_error("--plot shows the families' speed-ups, which this run does not measure: leave it out")
    check_plot(arguments.plot)


def _numbers(text: str) -> list[int]:
    try:
        return [whole_number(part.strip(), least=1, most=MAX_DRAFT) for part in text.split(",")]
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}; write a list as 1,2,4") from None


command: Command = BenchCommand()
