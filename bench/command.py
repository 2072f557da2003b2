"""The verb `bench`: plain and speculative decoding on the same prompts in one run. Engines load when it runs."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial

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

from .peers.peer import PEERS

REPETITIONS = 9
SWEPT = 12
"""Default number of budgets in a memory sweep."""
QUICK_REPETITIONS = 3
"""For --quick --scale, whose tokens take ten times as long as those of the bundled pack."""


class BenchCommand:
    """Print tables, or with --json all figures in one line."""

    name = "bench"
    help = "measure plain and speculative decoding, interleaved, on this machine"

    def configure(self, parser: ArgumentParser) -> None:
        kinds = parser.add_argument_group("measurement (default: plain and scheduled decoding, by task family)")
        kind = kinds.add_mutually_exclusive_group()
        kind.add_argument(
            "--against",
            type=name_list,
            default=[],
            metavar="A,B",
            help="compare plain and scheduled decoding with plain and speculative decoding of other engines: "
            f"{', '.join(PEERS)}",
        )
        kind.add_argument(
            "--structured",
            action="store_true",
            help="facts of texts as JSON, under schemas, any JSON and free: speed, and how many values are right",
        )
        kind.add_argument(
            "--memory-sweep",
            nargs="?",
            type=partial(whole_number, least=2, most=1000),
            const=SWEPT,
            metavar="N",
            help=f"peak memory of a chat under N budgets (default: {SWEPT}), from the smallest to unlimited, on each "
            "engine; exits with 1 if a chat exceeds its budget",
        )
        kinds.add_argument(
            "--scale",
            metavar="SIZE",
            help="first widen the pack until its target has SIZE, for example 300MB: it generates the same text at the "
            "cost of a larger model",
        )
        _add_prompt_options(parser)
        add_json(parser)
        add_pack_options(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        _check(arguments)
        if arguments.repetitions is None:
            arguments.repetitions = QUICK_REPETITIONS if arguments.quick and arguments.scale else REPETITIONS
        from .kinds import run

        return run(arguments)


def _add_prompt_options(parser: ArgumentParser) -> None:
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
        "--lengths", type=_lengths, metavar="N,N", help="fixed draft lengths (default: 1,2,4,8); implies --fixed"
    )
    what.add_argument(
        "--repetitions",
        type=partial(whole_number, least=1, most=1000),
        metavar="N",
        help=f"repetitions of every run (default: {REPETITIONS}; {QUICK_REPETITIONS} with --quick --scale)",
    )
    what.add_argument(
        "-n", "--max-tokens", type=positive_count, metavar="N", help="end each answer after N tokens (default: 128)"
    )
    what.add_argument("--temp", type=real_number, metavar="T", help="sample at this temperature (default: greedy)")
    what.add_argument(
        "--top-p", type=real_number, metavar="P", help="with --temp: sample from the likeliest tokens up to this mass"
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


_FIXED = ("drafters", "lengths", "fixed")
_PROMPTS = ("families", "per_family", "prompts")
_EXCLUDED = {
    "against": (*_FIXED, "temp", "adapter"),
    "structured": (*_FIXED, *_PROMPTS, "temp"),
    "memory_sweep": (*_FIXED, *_PROMPTS, "temp", "repetitions", "quick", "adapter", "memory"),
    "scale": ("adapter",),
}
"""The options that have no place in a kind of measurement."""
_NEEDS = {"turns": "memory_sweep", "top_p": "temp"}


def _check(arguments: Namespace) -> None:
    """Exit with a usage error for options that contradict each other, or apply to nothing."""
    given = {name for name, value in vars(arguments).items() if value not in (None, False, [])}
    for kind, excluded in _EXCLUDED.items():
        if kind in given and (named := [name for name in excluded if name in given]):
            arguments.usage_error(f"{_flag(named[0])} does not go with {_flag(kind)}: leave one of the two out")
    for name, needed in _NEEDS.items():
        if name in given and needed not in given:
            arguments.usage_error(f"{_flag(name)} needs {_flag(needed)}: give both")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _lengths(text: str) -> list[int]:
    try:
        return [whole_number(part.strip(), least=1, most=MAX_DRAFT) for part in text.split(",")]
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}; write a list as 1,2,4") from None


command: Command = BenchCommand()
