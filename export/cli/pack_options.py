"""Options of `export` for a pack's contents: weight storage, graphs, GGUF files and adapters."""

from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import count, whole_number

from ..graph.graph_request import DEFAULT_RANK, GRAPHS, LEAST_CONTEXT

if TYPE_CHECKING:
    from ..graph.recipe import Recipe

BITS = (4, 8, 16, 32)
ACTIVATIONS = ("auto", "8", "16")


def add_recipe(parser: ArgumentParser) -> None:
    """Add the options for quantization: bits, block size, mixed precision, calibration and activations."""
    group = parser.add_argument_group("how weights are stored")
    group.add_argument("--bits", type=whole_number, choices=BITS, help="width of the weights (default 8)")
    group.add_argument(
        "--block-size",
        type=whole_number,
        choices=(32, 128),
        help="number of 4-bit or 8-bit weights that share a scale (default 32)",
    )
    group.add_argument(
        "--head-bits",
        type=whole_number,
        choices=BITS,
        help="width of head and embedding (default: 8 up to --bits 8, else as --bits)",
    )
    group.add_argument(
        "--mixed",
        action=BooleanOptionalAction,
        help="8 bits for the matrices whose rounding changes the model most on the text of calibration, or without one "
        "for query, key, value and the first and last layer (default with --bits 4)",
    )
    group.add_argument(
        "--calibrated",
        action=BooleanOptionalAction,
        help="round 4-bit weights for the least error of their products on text, at the same size and speed (default "
        "with 4-bit weights)",
    )
    group.add_argument(
        "--calibrate-text",
        type=Path,
        metavar="FILE",
        help="calibrate on this .txt, or .jsonl with messages, instead of text that the model generates",
    )
    group.add_argument(
        "--imatrix",
        type=Path,
        metavar="FILE",
        help="take the importance of the target's columns from a file of llama.cpp's llama-imatrix instead of text",
    )
    group.add_argument(
        "--write-imatrix",
        type=Path,
        metavar="FILE",
        help="write the importance that calibration measures on the target as such a file",
    )
    group.add_argument(
        "--activations",
        choices=ACTIVATIONS,
        default="auto",
        help="bits that the inputs of quantized products are rounded to (default auto: 8, and 16 where 8 lose too much "
        "on text)",
    )


def read_recipe(arguments: Namespace) -> "Recipe":
    """Return the export's recipe; exit with a usage error if options contradict each other."""
    from ..graph.quantize import Scheme
    from ..graph.recipe import Recipe

    bits = arguments.bits or 8
    head = arguments.head_bits or (8 if bits <= 8 else bits)
    block_size = arguments.block_size or 32
    schemes = {width: Scheme(width, block_size if width <= 8 else 0) for width in (bits, head, 8)}
    raised = schemes[8] if arguments.mixed or (arguments.mixed is None and bits == 4) else None
    names = ("calibrate_text", "imatrix", "write_imatrix")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) is not None]
    calibrated = arguments.calibrated or (arguments.calibrated is None and (bool(given) or 4 in (bits, head)))
    recipe = Recipe(schemes[bits], schemes[head], raised=raised, calibrated=calibrated)
    if arguments.out is None and not arguments.dry_run:
        arguments.usage_error("the following arguments are required: --out (or --dry-run)")
    if arguments.block_size is not None and not recipe.quantized:
        arguments.usage_error(f"argument --block-size: {recipe.body.name} weights have no blocks, leave it out")
    if arguments.activations == "16" and not recipe.quantized:
        arguments.usage_error(f"argument --activations: {recipe.name} weights use float activations, leave it out")
    if arguments.mixed and bits != 4:
        arguments.usage_error("argument --mixed: it keeps parts of a 4-bit model at 8 bits, add --bits 4")
    if arguments.calibrated is False and given:
        arguments.usage_error(f"argument {given[0]}: --no-calibrated leaves it unused, give one of them")
    if "--imatrix" in given and len(given) > 1:
        arguments.usage_error("argument --imatrix: nothing is calibrated then, leave the other option out")
    if calibrated and 4 not in (bits, head):
        arguments.usage_error("argument --calibrated: it only affects 4-bit weights, add --bits 4")
    return recipe


def add_graphs(parser: ArgumentParser) -> None:
    """Add the options for graphs and GGUF files."""
    parser.add_argument(
        "--formats",
        type=_formats,
        default=("onnx",),
        metavar="LIST",
        help="what to write: onnx, or onnx,gguf for llama.cpp too, with the same quantized blocks (default onnx)",
    )
    group = parser.add_argument_group("graphs")
    group.add_argument(
        "--graphs",
        default="base",
        metavar="A,B",
        help=f"any of {', '.join(GRAPHS)}: lora takes adapters, kv8 has an 8-bit KV cache (default: "
        f"%(default)s, which is always included)",
    )
    group.add_argument(
        "--lora-rank", type=count, metavar="N", help=f"largest rank of an adapter (default: {DEFAULT_RANK})"
    )
    group.add_argument(
        "--context",
        type=_context,
        metavar="N",
        help="context length (default: the model's own, up to 32768; rotary tables grow with it)",
    )


def _context(text: str) -> int:
    value = count(text)
    if value < LEAST_CONTEXT:
        raise ArgumentTypeError(f"{text!r} positions are too few: {LEAST_CONTEXT} or more")
    return value


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= {"onnx", "gguf"}:
        raise ArgumentTypeError(f"{text!r} is not a list of onnx and gguf")
    if "onnx" not in names:
        raise ArgumentTypeError(
            "a pack needs ONNX graphs, and the GGUF file is made from their weights: give onnx,gguf"
        )
    return names
