"""The verb `bench`: plain and speculative decoding on the same prompts in one run. Engines load when it runs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from edgedecode.commands import Command

from ..options import add_pack_options
from .peers.options import add_peer_options, check_peer_options

__all__ = ["command"]


class BenchCommand:
    """Tables first; with --json one line with every figure last."""

    name = "bench"
    help = "measure plain and speculative decoding, interleaved, on this machine"

    def configure(self, parser: ArgumentParser) -> None:
        what = parser.add_argument_group("what is measured")
        what.add_argument(
            "--overhead", action="store_true", help="host work per token and round, and bare loops instead"
        )
        add_peer_options(parser)
        what.add_argument("--quick", action="store_true", help="few prompts and arms: a look of some seconds")
        what.add_argument("--families", type=_names, metavar="A,B", help="only these task families")
        what.add_argument("--per-family", type=int, metavar="N", help="prompts of each family (default: 5)")
        what.add_argument("--prompts", metavar="FILE", help="jsonl with family and messages, or Spec-Bench's turns")
        what.add_argument("--drafters", type=_names, metavar="A,B", help="drafters (default: all the pack can use)")
        what.add_argument("--lengths", type=_numbers, metavar="N,N", help="draft lengths (default: 1,2,4,8)")
        what.add_argument("--repetitions", type=int, default=9, metavar="N", help="of every run (default: %(default)s)")
        what.add_argument(
            "-n", "--max-tokens", type=int, metavar="N", help="tokens of an answer at most (default: 128)"
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON line")
        add_pack_options(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        check_peer_options(arguments)
        from .run import run

        return run(arguments)


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no list of whole numbers such as 1,2,4") from None


command: Command = BenchCommand()
