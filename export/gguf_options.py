"""The options on GGUF files: whether a pack gets them, and quantized by whom."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from .gguf.engine import K_QUANTS

__all__ = ["add_gguf", "check_gguf_options"]


def add_gguf(parser: ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("for llama.cpp")
    group.add_argument(
        "--formats",
        type=_formats,
        default=("onnx",),
        metavar="LIST",
        help="what to write: onnx, or onnx,gguf for llama.cpp too, with the very same blocks (default onnx)",
    )
    group.add_argument(
        "--gguf-type",
        choices=K_QUANTS,
        help="let llama.cpp quantize the GGUF file from the unrounded weights instead (needs llama-cpp-python)",
    )


def check_gguf_options(arguments: Namespace) -> None:
    """End with a usage error where the options contradict each other."""
    if arguments.gguf_type and "gguf" not in arguments.formats:
        arguments.usage_error("argument --gguf-type: no GGUF file is asked for, add --formats onnx,gguf")


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= {"onnx", "gguf"}:
        raise ArgumentTypeError(f"{text!r} is no list of onnx and gguf")
    if "onnx" not in names:
        raise ArgumentTypeError("a pack holds ONNX graphs, from whose weights the GGUF file is made: give onnx,gguf")
    return names
