"""The options on GGUF files: whether a pack gets them, and quantized by whom."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from .arguments import check_adapter_names, named_path
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
    matrix = group.add_mutually_exclusive_group()
    matrix.add_argument(
        "--imatrix-text",
        type=Path,
        metavar="FILE",
        help="with --gguf-type: weigh errors by what the columns carry on this .txt, or .jsonl with messages",
    )
    matrix.add_argument(
        "--imatrix", type=Path, metavar="FILE", help="the same, measured before by llama.cpp's llama-imatrix (GGUF)"
    )
    group.add_argument(
        "--adapter",
        type=named_path,
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="LoRA adapter of the large model, as PEFT saved it, for `generate --adapter NAME` on llama.cpp; may be "
        "given again",
    )


def check_gguf_options(arguments: Namespace) -> None:
    """End with a usage error where the options contradict each other."""
    check_adapter_names(arguments)
    if arguments.adapter and "gguf" not in arguments.formats:
        arguments.usage_error("argument --adapter: it becomes a GGUF file beside the target's, add --formats onnx,gguf")
    if arguments.gguf_type and "gguf" not in arguments.formats:
        arguments.usage_error("argument --gguf-type: no GGUF file is asked for, add --formats onnx,gguf")
    if (arguments.imatrix_text or arguments.imatrix) and not arguments.gguf_type:
        arguments.usage_error(
            "arguments --imatrix-text and --imatrix: only llama.cpp's quantizer takes them, add --gguf-type "
            "(--calibrated searches the scales of the pack's own blocks)"
        )
    if arguments.imatrix and arguments.draft:
        arguments.usage_error("argument --imatrix: it was measured on one model, not on a pair; give --imatrix-text")


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= {"onnx", "gguf"}:
        raise ArgumentTypeError(f"{text!r} is not a list of onnx and gguf")
    if "onnx" not in names:
        raise ArgumentTypeError("a pack holds ONNX graphs, from whose weights the GGUF file is made: give onnx,gguf")
    return names
