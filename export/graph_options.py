"""The options on graphs: which ones a model gets, what its adapters may change, and how many positions it serves."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from edgedecode.commands import count

from .graph.graph_request import DEFAULT_RANK, GRAPHS, LORA_MODULES, GraphRequest
from .graph.span import LEAST_CONTEXT, Span

__all__ = ["add_graphs", "read_graphs", "read_span"]


def add_graphs(parser: ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("graphs over the one weights file")
    group.add_argument(
        "--graphs",
        default="base",
        metavar="A,B",
        help=f"of {', '.join(GRAPHS)}: hidden gives the last hidden state, lora takes adapters, kv8 keeps keys and "
        f"values in 8 bits (default: %(default)s, which is always there)",
    )
    group.add_argument(
        "--lora-rank", type=count, metavar="N", help=f"largest rank of an adapter (default: {DEFAULT_RANK})"
    )
    group.add_argument(
        "--lora-modules",
        default="",
        metavar="A,B",
        help=f"projections an adapter may change, as in PEFT's target_modules (default: of {', '.join(LORA_MODULES)} "
        f"those the model has)",
    )
    group.add_argument(
        "--context",
        type=_context,
        metavar="N",
        help="positions to serve (default: the model's own, up to 32768; rotary tables grow with it)",
    )
    group.add_argument(
        "--rope",
        choices=("short", "long"),
        default="short",
        help="which factors a long-rope model gets: short ones end its context where it would change them, long "
        "ones serve all of it and are wrong for short texts (default short)",
    )


def read_graphs(arguments: Namespace) -> GraphRequest:
    """Return the graphs asked for. Raises InputError."""
    return GraphRequest.of(arguments.graphs, lora_rank=arguments.lora_rank, lora_modules=arguments.lora_modules)


def read_span(arguments: Namespace) -> Span:
    """Return the positions asked for."""
    return Span(context=arguments.context, long_rope=arguments.rope == "long")


def _context(text: str) -> int:
    value = count(text)
    if value < LEAST_CONTEXT:
        raise ArgumentTypeError(f"{text!r} positions are too few: {LEAST_CONTEXT} or more")
    return value
