"""Output of `trim`: a table by size and category, a chart, and the same as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgedecode.memory.sizes import format_nbytes

from ..trim.sweep import Prediction, Sweep, SweepRow, TrimResult
from ..trim.timing import ANSWER_REPETITIONS, MAX_TOKENS
from .display import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 150
"""Output width if not on a terminal: wide enough that table rows are not wrapped."""
_LEGEND = (
    "coverage: share of the tokens in the trimmed vocabulary; a round: tokens per round, including the target's own, "
    "at the best draft length; step: drafting one token; MBSU: memory-bound speed-up; S: speed-up over plain decoding, "
    "predicted from measured forward passes"
)
_MEASURED = (
    f"; S measured: over complete answers of {MAX_TOKENS} tokens with their prompts, the median of "
    f"{ANSWER_REPETITIONS} interleaved repetitions"
)


def show_trim(result: TrimResult) -> None:
    """Print the measurements and the changes to the pack."""
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False, markup=False)
    sweep = result.sweep
    console.print(f"{result.root} on {result.runtime}; counted: {result.calibration}")
    console.print(_table(result))
    legend = _LEGEND + _MEASURED if result.speeds else _LEGEND
    console.print(legend, style="dim")
    for line in _conclusion(result, sweep):
        console.print(line, soft_wrap=True)


def trim_report(result: TrimResult) -> Report:
    """Return the result as JSON values; times in seconds, sizes in ids or bytes."""
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
    """Return a table of the categories for the full draft, then for each size, largest first."""
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
    """Return the measured speed if the row is the pack's new head or the full one."""
    speeds = result.speeds.get(category)
    if not result.speeds:
        return ()
    if speeds is None or row not in (result.chosen, result.sweep.whole):
        return ("",)
    return (f"{speeds.whole if row is result.sweep.whole else speeds.trimmed:.3f}",)


def _conclusion(result: TrimResult, sweep: Sweep) -> list[str]:
    if result.chosen is None or result.entry is None:
        stays = "" if result.former is None else f"; the pack keeps its trim of {result.former.size} ids"
        return [f"no size is faster, and nothing was changed: {sweep.reason()}{stays}"]
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


def sweep_figure(result: TrimResult) -> Figure:
    """Plot coverage and predicted speed by size, one line per category; a black line marks the chosen size."""
    from matplotlib.figure import Figure

    figure = Figure((9, 7), layout="constrained")
    figure.suptitle(f"{result.root.name}: the draft's vocabulary")
    above, below = figure.subplots(2, sharex=True)
    rows = (*result.sweep.rows, result.sweep.whole)
    sizes = [row.size for row in rows]
    for name in rows[0].categories:
        found = [row.categories[name] for row in rows]
        above.plot(sizes, [each.acceptance.coverage for each in found], label=name)
        below.plot(sizes, [each.speed_up for each in found])
    above.set_ylabel("coverage")
    below.set_ylabel("S: predicted speed-up over plain decoding")
    below.set_xscale("log", base=2)
    below.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    for axes in (above, below):
        axes.grid(alpha=0.3)
        if result.chosen is not None:
            axes.axvline(result.chosen.size, color="black")
    figure.legend(loc="outside right upper")
    return figure
