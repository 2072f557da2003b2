"""The options that make a recipe, and the recipe they make."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import whole_number

if TYPE_CHECKING:
    from .graph.recipe import Recipe

__all__ = ["add_recipe", "read_recipe"]

BITS = (4, 8, 16, 32)
ACTIVATIONS = ("auto", "8", "16")


def add_recipe(parser: ArgumentParser) -> None:
    """Add the options on widths and blocks, which weights are kept wider, and how they are rounded."""
    group = parser.add_argument_group("how weights are stored")
    group.add_argument("--bits", type=whole_number, choices=BITS, help="width of the weights (default 8)")
    group.add_argument(
        "--block-size",
        type=whole_number,
        choices=(32, 128),
        help="weights that share a scale, where they have 4 or 8 bits (default 32)",
    )
    group.add_argument(
        "--head-bits",
        type=whole_number,
        choices=BITS,
        help="width of head and embedding (default: 8 up to --bits 8, then as --bits)",
    )
    group.add_argument("--mixed", action="store_true", help="with --bits 4: first and last layer at 8 bits")
    group.add_argument(
        "--calibrated",
        action="store_true",
        help="search the scales of 4-bit weights for the least error that text would notice (same size and speed)",
    )
    group.add_argument(
        "--calibrate-text",
        type=Path,
        metavar="FILE",
        help="calibrate on this .txt, or .jsonl with messages, instead of on text that the model writes itself",
    )
    group.add_argument(
        "--activations",
        choices=ACTIVATIONS,
        default="auto",
        help="bits that the inputs of quantized products are rounded to (default auto: 8, and 16 where text shows that "
        "8 are too few)",
    )


def read_recipe(arguments: Namespace) -> Recipe:
    """Return the recipe of an export; a usage error where options contradict each other."""
    from .graph.quantize import Scheme
    from .graph.recipe import Recipe

    bits = arguments.bits or 8
    head = arguments.head_bits or (8 if bits <= 8 else bits)
    block_size = arguments.block_size or 32
    schemes = {width: Scheme(width, block_size if width <= 8 else 0) for width in (bits, head, 8)}
    edges = schemes[8] if arguments.mixed else None
    calibrated = arguments.calibrated or arguments.calibrate_text is not None
    recipe = Recipe(schemes[bits], schemes[head], edges=edges, calibrated=calibrated)
    if arguments.out is None and not arguments.dry_run:
        arguments.usage_error("the following arguments are required: --out (or --dry-run, or --compare)")
    if arguments.block_size is not None and not recipe.quantized:
        arguments.usage_error(f"argument --block-size: {recipe.body.name} weights have no blocks, leave it out")
    if arguments.activations == "16" and not recipe.quantized:
        arguments.usage_error(f"argument --activations: with {recipe.name} weights nothing is rounded, leave it out")
    if arguments.mixed and bits != 4:
        arguments.usage_error("argument --mixed: it keeps two layers of a 4-bit model at 8 bits, add --bits 4")
    if calibrated and 4 not in (bits, head):
        arguments.usage_error("argument --calibrated: only 4-bit weights gain from it, add --bits 4")
    if arguments.compare_text is not None or arguments.plot is not None:
        arguments.usage_error("arguments --compare-text and --plot: they belong to --compare")
    return recipe
