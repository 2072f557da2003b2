"""What was found by a trim: a table by size and category, a drawing, and the same as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgedecode.memory import format_nbytes

from ..trim.sweep import Prediction, Sweep, SweepRow, TrimResult
from ..trim.timing import ANSWER_REPETITIONS, MAX_TOKENS
from .display import Report
from .svg import Axis, document, line, polyline, text

__all__ = ["show_trim", "sweep_svg", "trim_report"]

_WIDTH = 150
"""Columns where the output is not a terminal: a pasted table must not be folded."""
_LEGEND = (
    "coverage: share of the tokens that are kept; a round: tokens a round, the target's own included, at the draft "
    "length that is best there; step: one token drafted; MBSU: speed-up where memory alone decides; S: times plain "
    "decoding, predicted from measured passes"
)
_MEASURED = (
    f"; S measured: over whole answers of {MAX_TOKENS} tokens with their prompts, the median of {ANSWER_REPETITIONS} "
    "repetitions, the arms interleaved"
)
_DRAWN_WIDTH, _PANEL = 900, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 160, 40, 40
_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666")


def show_trim(result: TrimResult) -> None:
    """Print what was found, and what the pack has now."""
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False, markup=False)
    sweep = result.sweep
    console.print(f"{result.root} on {result.runtime}; counted: {result.calibration}")
    console.print(_table(result))
    legend = _LEGEND + _MEASURED if result.speeds else _LEGEND
    console.print(legend, style="dim")
    for remark in _conclusion(result, sweep):
        console.print(remark, soft_wrap=True)


def trim_report(result: TrimResult) -> Report:
    """Return the same as values for one JSON line; times are seconds, sizes ids or bytes."""
    sweep, chosen, entry = result.sweep, result.chosen, result.entry
    return {
        "pack": str(result.root),
        "runtime": result.runtime,
        "calibration": result.calibration,
        "coverage_bound": sweep.bound,
        "target_seconds": {str(width): seconds for width, seconds in sweep.target.seconds.items()},
        "whole": _row_report(sweep.whole),
        "sizes": [_row_report(row) for row in sweep.rows],
        "best": None if sweep.best is None else sweep.best.size,
        "size": None if chosen is None else chosen.size,
        "recommended": None if entry is None else entry.recommended,
        "reason": sweep.reason() if chosen is None else None,
        "draft_length": None if entry is None else entry.length,
        "warnings": [] if entry is None else list(entry.warnings),
        "files": dict(result.files),
        "measured": {
            name: {"whole": speeds.whole, "trimmed": speeds.trimmed} for name, speeds in result.speeds.items()
        },
    }


def _table(result: TrimResult) -> Table:
    """Return a block of categories for the whole draft, then for each size, the largest first."""
    table = Table("size", "category", box=None, pad_edge=False)
    titles = ["tokens", "coverage", "a round", "length", "step ms", "MBSU", "S"]
    for title in [*titles, "S measured"] if result.speeds else titles:
        table.add_column(title, justify="right")
    for row in (result.sweep.whole, *reversed(result.sweep.rows)):
        for number, (name, found) in enumerate(row.categories.items()):
            first = (str(row.size), f"{1000 * row.costs.step_seconds:.3f}") if number == 0 else ("", "")
            table.add_row(first[0], Text(name), *_cells(found, step=first[1]), *_measured(result, row, name))
    return table


def _cells(found: Prediction, *, step: str) -> tuple[str, ...]:
    acceptance = found.acceptance
    return (
        str(acceptance.tokens),
        f"{acceptance.coverage:.2%}",
        f"{acceptance.per_round[found.length]:.3f}",
        str(found.length),
        step,
        f"{found.mbsu:.2f}",
        f"{found.speed_up:.3f}",
    )


def _measured(result: TrimResult, row: SweepRow, category: str) -> tuple[str, ...]:
    """Return the measured speed where the pack has just this head, or the whole one."""
    speeds = result.speeds.get(category)
    if not result.speeds:
        return ()
    if speeds is None or row not in (result.chosen, result.sweep.whole):
        return ("",)
    return (f"{speeds.whole if row is result.sweep.whole else speeds.trimmed:.3f}",)


def _conclusion(result: TrimResult, sweep: Sweep) -> list[str]:
    if result.chosen is None or result.entry is None:
        stays = "" if result.former is None else f"; the trim of {result.former.size} ids that the pack has stays"
        return [f"no size wins, and nothing was changed: {sweep.reason()}{stays}"]
    row, entry = result.chosen, result.entry
    found, whole = row.categories[sweep.main], sweep.whole.categories[sweep.main]
    step = 1 - row.costs.step_seconds / sweep.whole.costs.step_seconds
    advice = "recommended" if entry.recommended else f"not recommended: {sweep.reason()}"
    files = ", ".join(f"{name} ({format_nbytes(nbytes)})" for name, nbytes in result.files.items())
    return [
        f"{entry.size} of {sweep.whole.size} ids: a draft step takes {step:.1%} less, S {found.speed_up:.2f} "
        f"instead of {whole.speed_up:.2f}; {advice}",
        *(f"warning: {warning}" for warning in entry.warnings),
        f"added {files}",
    ]


def _row_report(row: SweepRow) -> Report:
    categories: Report = {
        name: {
            "tokens": found.acceptance.tokens,
            "coverage": found.acceptance.coverage,
            "tokens_per_round": {str(length): value for length, value in found.acceptance.per_round.items()},
            "length": found.length,
            "mbsu": found.mbsu,
            "speed_up": found.speed_up,
        }
        for name, found in row.categories.items()
    }
    return {
        "size": row.size,
        "step_seconds": row.costs.step_seconds,
        "bytes_ratio": row.costs.bytes_ratio,
        "categories": categories,
    }


def sweep_svg(sweep: Sweep, *, title: str, chosen: int | None) -> str:
    """Return the drawing as text; a vertical line marks the chosen size."""
    rows = (*sweep.rows, sweep.whole)
    across = Axis.over([log2(row.size) for row in rows], _LEFT, _DRAWN_WIDTH - _RIGHT)
    parts = [text(_DRAWN_WIDTH / 2, 20, title, anchor="middle")]
    parts += _panel(rows, across, _TOP, label="coverage", value=lambda found: found.acceptance.coverage)
    parts += _panel(
        rows, across, _PANEL + _TOP, label="S: speed over plain decoding, predicted", value=lambda found: found.speed_up
    )
    if chosen is not None:
        at = across.at(log2(chosen))
        parts.append(line(at, _TOP, at, 2 * _PANEL - _BOTTOM, "black"))
    return document(parts, width=_DRAWN_WIDTH, height=2 * _PANEL)


def _panel(
    rows: Sequence[SweepRow], across: Axis, top: int, *, label: str, value: Callable[[Prediction], float]
) -> list[str]:
    base = top + _PANEL - _BOTTOM - _TOP
    up = Axis.over([value(found) for row in rows for found in row.categories.values()], base, top)
    parts = [line(_LEFT, base, _DRAWN_WIDTH - _RIGHT, base, "black"), text(_LEFT, top - 6, label, anchor="start")]
    parts += [text(across.at(log2(row.size)), base + 16, str(row.size), anchor="middle") for row in rows]
    for tick in up.ticks:
        parts.append(line(_LEFT, up.at(tick), _DRAWN_WIDTH - _RIGHT, up.at(tick), "#dddddd"))
        parts.append(text(_LEFT - 8, up.at(tick) + 4, f"{tick:.3g}", anchor="end"))
    for number, name in enumerate(rows[0].categories):
        colour = _COLOURS[number % len(_COLOURS)]
        xs = [across.at(log2(row.size)) for row in rows]
        parts.append(polyline(xs, [up.at(value(row.categories[name])) for row in rows], colour))
        parts.append(text(_DRAWN_WIDTH - _RIGHT + 12, top + 16 * (number + 1), name, anchor="start", colour=colour))
    return parts
