"""A comparison of recipes: a table, a drawing of size and agreement, and the same as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..recipes.pass_speeds import CONTEXT, ROUNDS, TURNS, WIDTHS
from ..stages import StageRecord
from .display import Report, stage_table, timings
from .svg import Axis, document, line, text

if TYPE_CHECKING:
    from ..recipes.comparison import Comparison, Result

__all__ = ["Point", "comparison_report", "scatter_svg", "show_comparison"]

_ENOUGH = 1000
"""Scored tokens below which a warning is printed."""
_WIDTH, _HEIGHT = 900, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 40, 50, 60
_LABEL_HEIGHT = 15
_COLOURS = {False: "#1f77b4", True: "#d95f02"}


def show_comparison(comparison: Comparison, records: Sequence[StageRecord]) -> None:
    """Print the recipes' table and what it rests on."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(stage_table(records))
    console.print()
    console.print(_table(comparison))
    for remark in _conditions(comparison):
        console.print(remark, style="dim")


def comparison_report(comparison: Comparison, records: Sequence[StageRecord]) -> Report:
    """Return the same as values for one JSON line; sizes are bytes, times seconds."""
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
        f"scored: {len(comparison.original.losses)} tokens of {comparison.text}; top-1: how often the leading token is "
        f"that of the original weights (float32 graph, same runtime)",
        f"calibrated: scales searched for the least error weighted by each column's mean square input, on "
        f"{comparison.calibration}",
        f"tokens/s: engine passes of one token behind at most {CONTEXT}; c(n): a pass of n tokens in the round's pass "
        f"of one; medians of {TURNS * ROUNDS} interleaved; a calibrated recipe is stored and runs as the one it is of",
        *(f"left out: {line}" for line in comparison.left_out),
        *_warning(len(comparison.original.losses)),
    ]


def _warning(scored: int) -> list[str]:
    """Warn when a text is too short to tell recipes apart."""
    if scored >= _ENOUGH:
        return []
    return [f"{scored} tokens tell nothing finer than {1 / scored:.1%} of top-1: give --compare-text for more"]


@dataclass(frozen=True, slots=True)
class Point:
    """One recipe: megabytes, agreement in percent, a label; marked ones have the other colour."""

    x: float
    y: float
    label: str
    marked: bool = False


def scatter_svg(points: Sequence[Point], *, title: str) -> str:
    """Return the drawing as text. At least one point is needed."""
    x = Axis.over([point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    y = Axis.over([point.y for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [text(_WIDTH / 2, 24, title, anchor="middle"), *_x_axis(x), *_y_axis(y), *_marks(points, x, y)]
    return document(parts, width=_WIDTH, height=_HEIGHT)


def _x_axis(axis: Axis) -> list[str]:
    base = _HEIGHT - _BOTTOM
    lines = [line(_LEFT, base, _WIDTH - _RIGHT, base, "black")]
    for tick in axis.ticks:
        lines.append(line(axis.at(tick), _TOP, axis.at(tick), base, "#dddddd"))
        lines.append(text(axis.at(tick), base + 18, f"{tick:g}", anchor="middle"))
    lines.append(text(_WIDTH / 2, _HEIGHT - 16, "weights, MB", anchor="middle"))
    return lines


def _y_axis(axis: Axis) -> list[str]:
    lines = [line(_LEFT, _TOP, _LEFT, _HEIGHT - _BOTTOM, "black")]
    for tick in axis.ticks:
        lines.append(line(_LEFT, axis.at(tick), _WIDTH - _RIGHT, axis.at(tick), "#dddddd"))
        lines.append(text(_LEFT - 8, axis.at(tick) + 4, f"{tick:g} %", anchor="end"))
    lines.append(text(_LEFT, _TOP - 12, "same leading token as the original weights", anchor="start"))
    return lines


def _marks(points: Sequence[Point], x: Axis, y: Axis) -> list[str]:
    """Draw dots and labels; labels are moved apart, and turned to the side that has room."""
    lines: list[str] = []
    taken: list[float] = []
    for point in sorted(points, key=lambda point: -point.y):
        across, up = x.at(point.x), y.at(point.y)
        height = up + 4
        while any(abs(height - other) < _LABEL_HEIGHT for other in taken):
            height += 1
        taken.append(height)
        right = across < _WIDTH / 2
        colour = _COLOURS[point.marked]
        lines.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="5" fill="{colour}"/>')
        anchor = "start" if right else "end"
        lines.append(text(across + (10 if right else -10), height, point.label, anchor=anchor, colour=colour))
    return lines
