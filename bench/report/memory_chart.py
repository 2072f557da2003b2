"""Charts of a memory sweep: plan and peaks by budget, and the memory of an unlimited chat over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgedecode.apps.memory_table import KINDS

from ..sweep.sweep_runs import Chat, SweepRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MB = 10**6
_COLOURS = {
    "planned": "tab:gray",
    "resident": "tab:blue",
    "anonymous": "tab:orange",
    "proportional": "tab:green",
}


def memory_figure(runs: Sequence[SweepRun], *, conditions: str) -> Figure:
    """Return a figure with two panels per engine: memory by budget, and the unlimited chat's memory over time."""
    from matplotlib.figure import Figure

    engines = list(dict.fromkeys(run.engine for run in runs))
    figure = Figure((7.0 * len(engines), 9), layout="constrained")
    panels = figure.subplots(2, len(engines), squeeze=False, sharey="row")
    for engine, above, below in zip(engines, *panels, strict=True):
        mine = [run for run in runs if run.engine == engine]
        _by_budget(above, mine, engine=engine)
        _by_time(below, mine)
    for row in panels:
        row[0].set_ylim(bottom=0)  # of the whole row, which shares its y axis
    figure.supxlabel(conditions, fontsize="xx-small", wrap=True)
    return figure


def _by_budget(axes: Axes, runs: Sequence[SweepRun], *, engine: str) -> None:
    """Plot plan and peaks by budget; a resident peak above the line y = x exceeds its budget."""
    limited = [(run.budget_nbytes, run.chat) for run in runs if run.budget_nbytes is not None and run.chat is not None]
    budgets = [budget / _MB for budget, _ in limited]
    axes.plot(budgets, budgets, color="black", linewidth=1, label="budget")
    _line(axes, "planned", budgets, [chat.planned_nbytes for _, chat in limited], marker="o")
    for kind in KINDS:
        _line(axes, kind, budgets, [getattr(chat.peak, kind) for _, chat in limited], marker="o")
    for chat in _unlimited(runs):
        size = chat.peak.resident / _MB
        axes.axhline(size, color=_COLOURS["resident"], linestyle=":", label="resident, unlimited")
    _name(axes, f"Peaks on {engine}", across="budget, MB")


def _by_time(axes: Axes, runs: Sequence[SweepRun]) -> None:
    """Plot the memory samples of the unlimited chat, and its plan."""
    for chat in _unlimited(runs):
        axes.axhline(chat.planned_nbytes / _MB, color=_COLOURS["planned"], linestyle="--", label="planned")
        seconds = [sample.seconds for sample in chat.samples]
        for kind in KINDS:
            _line(axes, kind, seconds, [getattr(sample.memory, kind) for sample in chat.samples])
    _name(axes, "The unlimited chat", across="seconds")


def _unlimited(runs: Sequence[SweepRun]) -> list[Chat]:
    return [run.chat for run in runs if run.budget_nbytes is None and run.chat is not None]


def _line(
    axes: Axes, label: str, places: Sequence[float], sizes: Sequence[int | None], *, marker: str | None = None
) -> None:
    """Plot the known sizes."""
    known = [(place, nbytes / _MB) for place, nbytes in zip(places, sizes, strict=True) if nbytes is not None]
    across, up = [place for place, _ in known], [size for _, size in known]
    axes.plot(across, up, color=_COLOURS[label], marker=marker, markersize=4, label=label)


def _name(axes: Axes, title: str, *, across: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel("MB")
    axes.legend(fontsize="small")
