"""Output of `export --compare`: a table, and the same as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..recipes.pass_speeds import CONTEXT, ROUNDS, TURNS, WIDTHS
from ..stages import StageRecord
from .display import Report, stage_table, timings

if TYPE_CHECKING:
    from ..recipes.comparison import Comparison, Result

_ENOUGH = 1000
"""A warning is printed below this number of scored tokens."""


def show_comparison(comparison: Comparison, records: Sequence[StageRecord]) -> None:
    """Print the stages, the recipes' table and the measuring conditions."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(stage_table(records))
    console.print()
    console.print(_table(comparison))
    for line in _conditions(comparison):
        console.print(line, style="dim")


def comparison_report(comparison: Comparison, records: Sequence[StageRecord]) -> Report:
    """Return the comparison as JSON values; sizes in bytes, times in seconds."""
    results: list[Report] = [_result(result) for result in comparison.results]
    return {
        "model": comparison.model,
        "text": comparison.text,
        "scored_tokens": len(comparison.original.losses),
        "calibration": comparison.calibration,
        "perplexity": comparison.original.perplexity,
        "recipes": results,
        "left_out": list(comparison.left_out),
        **timings(records),
    }


def _result(result: Result) -> Report:
    return {
        "recipe": result.recipe.name,
        "weights_nbytes": result.nbytes,
        "perplexity": result.scores.perplexity,
        "top1": result.agreement,
        "tokens_per_second": result.speeds.tokens_per_second,
        **{f"c{width}": result.speeds.c(width) for width in WIDTHS[1:]},
    }


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(comparison.model)
    for title in ("MB", "perplexity", "top-1", "tokens/s", *(f"c({width})" for width in WIDTHS[1:])):
        table.add_column(title, justify="right", no_wrap=True)
    blanks = [""] * len(WIDTHS)
    table.add_row("original weights", "", f"{comparison.original.perplexity:.4f}", "", *blanks)
    for result in comparison.results:
        table.add_row(
            "  calibrated" if result.recipe.calibrated else result.recipe.name,
            f"{result.nbytes / 1e6:.1f}",
            f"{result.scores.perplexity:.4f}",
            f"{result.agreement:.2%}",
            f"{result.speeds.tokens_per_second:.0f}",
            *(f"{result.speeds.c(width):.2f}" for width in WIDTHS[1:]),
        )
    return table


def _conditions(comparison: Comparison) -> list[str]:
    return [
        f"scored: {len(comparison.original.losses)} tokens of {comparison.text}; top-1: agreement with the original "
        f"weights' most likely token (float32 graph, same runtime)",
        f"calibrated: 4-bit weights rounded for the least error of their products on {comparison.calibration}",
        f"tokens/s: forward passes of one token after at most {CONTEXT}; c(n): cost of a pass of n tokens relative to "
        f"one token; medians of {TURNS * ROUNDS} interleaved passes; calibration changes neither size nor speed",
        *(f"left out: {line}" for line in comparison.left_out),
        *_warning(len(comparison.original.losses)),
    ]


def _warning(scored: int) -> list[str]:
    """Return a warning if the text is too short to distinguish recipes."""
    if scored >= _ENOUGH:
        return []
    return [f"{scored} tokens resolve top-1 only to {1 / scored:.1%}: give a longer text with --compare-text"]
