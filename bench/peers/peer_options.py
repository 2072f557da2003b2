"""The options of `bench` about other engines."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from edgedecode.commands import name_list

from .peer import PEERS

__all__ = ["add_peer_options", "check_peer_options"]


def add_peer_options(parser: ArgumentParser) -> None:
    """Add what names the peers, and where their own files lie."""
    peers = parser.add_argument_group("other engines, in the same run")
    peers.add_argument(
        "--against",
        type=name_list,
        default=[],
        metavar="A,B",
        help=f"compare plain and scheduled decoding with other engines' plain and speculative decoding instead: "
        f"{', '.join(PEERS)}",
    )
    peers.add_argument(
        "--against-genai",
        type=_folders,
        default=[],
        metavar="TARGET[,DRAFT]",
        help="folders of onnxruntime-genai's builder (default: made of the pack's graphs and weights)",
    )
    peers.add_argument(
        "--against-transformers",
        type=_folders,
        default=[],
        metavar="TARGET[,DRAFT]",
        help="the checkpoints the pack was made from",
    )


def check_peer_options(arguments: Namespace) -> None:
    """End with a usage error where options do not go together."""
    if arguments.against and arguments.overhead:
        arguments.usage_error("--against compares whole requests and --overhead bare loops: leave one of the two out")
    if arguments.against and (arguments.drafters or arguments.lengths or arguments.fixed):
        arguments.usage_error("--against compares what the scheduler chooses: leave --drafters and --lengths out")
    others = arguments.draws, arguments.mixed, arguments.calibrate, arguments.replay, arguments.plot, arguments.temp
    if arguments.against and (any(others) or arguments.synthetic is not None):
        arguments.usage_error("--against measures greedy answers to prompts and nothing else: give it alone")
    if arguments.against_genai and not arguments.overhead and "genai" not in arguments.against:
        arguments.usage_error("--against-genai: give --against genai or --overhead with it")
    if arguments.against_transformers and "transformers" not in arguments.against:
        arguments.usage_error("--against-transformers: give --against transformers with it")


def _folders(text: str) -> list[str]:
    folders = name_list(text)
    if len(folders) > 2:
        raise ArgumentTypeError(f"{text!r} names {len(folders)} folders: give the target's and perhaps the draft's")
    return folders
