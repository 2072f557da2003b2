"""The chart of a memory sweep: plan and peak by budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..sweep.sweep_runs import SweepRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MB = 10**6


def memory_figure(runs: Sequence[SweepRun], *, conditions: str) -> Figure:
    """Return a figure with a panel per engine."""
    from matplotlib.figure import Figure

    engines = list(dict.fromkeys(run.engine for run in runs))
    figure = Figure((7.0 * len(engines), 4.5), layout="constrained")
    panels = figure.subplots(1, len(engines), squeeze=False, sharey="row")[0]
    for engine, panel in zip(engines, panels, strict=True):
        _by_budget(panel, [run for run in runs if run.engine == engine], engine=engine)
    panels[0].set_ylim(bottom=0)  # of all, which share the y axis
    figure.supxlabel(conditions, fontsize="xx-small", wrap=True)
    return figure


def _by_budget(axes: Axes, runs: Sequence[SweepRun], *, engine: str) -> None:
    """Plot plan and peaks by budget; a peak above the line y = x exceeds its budget."""
    limited = [(run.budget_nbytes, run.chat) for run in runs if run.budget_nbytes is not None and run.chat is not None]
    budgets = [budget / _MB for budget, _ in limited]
    axes.plot(budgets, budgets, color="black", linewidth=1, label="budget")
    planned, peaks = [chat.planned_nbytes / _MB for _, chat in limited], [chat.peak_nbytes / _MB for _, chat in limited]
    axes.plot(budgets, planned, color="tab:gray", marker="o", markersize=4, label="planned")
    axes.plot(budgets, peaks, color="tab:blue", marker="o", markersize=4, label="peak")
    for chat in [run.chat for run in runs if run.budget_nbytes is None and run.chat is not None]:
        axes.axhline(chat.peak_nbytes / _MB, color="tab:blue", linestyle=":", label="peak, unlimited")
    axes.set_title(f"Peaks on {engine}")
    axes.set_xlabel("budget, MB")
    axes.set_ylabel("MB")
    axes.legend(fontsize="small")
