"""Tables of a memory sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgedecode.memory.sizes import format_nbytes
from edgedecode.plot_file import write_plot

from ..sweep.sweep_runs import Chat, SweepRun
from .bench_tables import Report
from .memory_chart import memory_figure

_NOTE = "unused: planned less peak, which is resident; red if more than 5% and 8 MB off, on either side\n"


def show_sweep(report: Report, runs: Sequence[SweepRun]) -> None:
    """Print each engine's runs by budget, and the reasons for aborted ones."""
    columns: dict[str, Callable[[SweepRun], str]] = {
        "budget": _budget,
        "planned": _of(lambda chat: format_nbytes(chat.planned_nbytes)),
        "peak": _of(lambda chat: format_nbytes(chat.peak_nbytes)),
        "verdict": lambda run: f"[{'green' if run.kept else 'red'}]{run.verdict}[/]",
        "unused": _unused,
        "context": _of(lambda chat: str(chat.context)),
        "filled": _of(lambda chat: f"{chat.longest / chat.context:.0%}"),
        "drafters": _of(lambda chat: chat.drafters),
        "cuts": _of(lambda chat: "; ".join(chat.given_up) or "none"),
        "tok/s": _of(lambda chat: f"{chat.tokens_per_second:.0f}"),
    }
    for engine in dict.fromkeys(run.engine for run in runs):
        mine = [run for run in runs if run.engine == engine]
        report.table(f"Peak memory of a chat on {engine} by budget", columns, mine, note=_NOTE)
    report.lines(f"Aborted: {run.engine}, {_budget(run)}: {run.failure}" for run in runs if run.failure)


def write_sweep_chart(path: Path, runs: Sequence[SweepRun], *, conditions: str) -> None:
    """Write a chart of the runs. Raises InputError if the file cannot be written."""
    write_plot(path, memory_figure(runs, conditions=conditions))


def _of(cell: Callable[[Chat], str]) -> Callable[[SweepRun], str]:
    return lambda run: "-" if run.chat is None else cell(run.chat)


def _budget(run: SweepRun) -> str:
    return "unlimited" if run.budget_nbytes is None else format_nbytes(run.budget_nbytes)


def _unused(run: SweepRun) -> str:
    """Return the plan less the peak, red if the two differ by more than the tolerance."""
    if run.unused_nbytes is None:
        return "-"
    size = format_nbytes(run.unused_nbytes)
    return size if run.as_planned else f"[red]{size}[/]"
