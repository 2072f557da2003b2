"""Charts of a memory sweep: plan and peak of each budget, and how an unlimited chat's memory went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..sweep.sweep_runs import SweepRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["memory_figure"]

_MB = 10**6
_COLOURS = {
    "planned": "tab:gray",
    "resident": "tab:blue",
    "anonymous": "tab:orange",
    "proportional": "tab:green",
}


def memory_figure(runs: Sequence[SweepRun], *, conditions: str) -> Figure:
    """Draw a column of two panels for each engine: figures by budget, and the unlimited chat's figures by time."""
    from matplotlib.figure import Figure

    engines = list(dict.fromkeys(run.engine for run in runs))
    figure = Figure((6.0 * len(engines), 9), layout="constrained")
    panels = figure.subplots(2, len(engines), squeeze=False, sharey="row")
    for engine, above, below in zip(engines, *panels, strict=True):
        mine = [run for run in runs if run.engine == engine]
        _by_budget(above, mine, engine=engine)
        _by_time(below, mine)
    for row in panels:
        row[0].set_ylim(bottom=0)  # of all of them
    figure.supxlabel(conditions, fontsize="xx-small", wrap=True)
    return figure


def _by_budget(axes: Axes, runs: Sequence[SweepRun], *, engine: str) -> None:
    """Draw plan and peaks over the budgets, unlimited ones as wide lines; a peak above the slope broke its budget."""
    limited = [(run.budget_nbytes / _MB, run.chat) for run in runs if run.budget_nbytes and run.chat]
    figures: dict[str, list[int | None]] = {
        "planned": [chat.planned_nbytes for _, chat in limited],
        "resident": [chat.peak.resident for _, chat in limited],
        "anonymous": [chat.peak.anonymous for _, chat in limited],
        "proportional": [chat.peak.proportional for _, chat in limited],
    }
    budgets = [budget for budget, _ in limited]
    axes.plot(budgets, budgets, color="black", linewidth=1, label="budget")
    for label, values in figures.items():
        if None not in values:
            axes.plot(
                budgets,
                [(value or 0) / _MB for value in values],
                "o-",
                color=_COLOURS[label],
                markersize=4,
                label=label,
            )
    for chat in (run.chat for run in runs if run.budget_nbytes is None):
        if chat is not None:
            axes.axhline(
                chat.peak.resident / _MB, color=_COLOURS["resident"], linestyle=":", label="resident, unlimited"
            )
    axes.set_title(f"Peaks on {engine}")
    axes.set_xlabel("budget, MB")
    axes.set_ylabel("MB")
    axes.legend(fontsize="small")


def _by_time(axes: Axes, runs: Sequence[SweepRun]) -> None:
    """Draw the samples of the unlimited chat, and its plan."""
    for chat in (run.chat for run in runs if run.budget_nbytes is None):
        if chat is None:
            continue
        axes.axhline(chat.planned_nbytes / _MB, color=_COLOURS["planned"], linestyle="--", label="planned")
        for kind in ("resident", "anonymous", "proportional"):
            told = [(sample.seconds, getattr(sample.memory, kind)) for sample in chat.samples]
            known = [(seconds, nbytes / _MB) for seconds, nbytes in told if nbytes is not None]
            axes.plot([seconds for seconds, _ in known], [size for _, size in known], color=_COLOURS[kind], label=kind)
    axes.set_title("The unlimited chat")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MB")
    axes.legend(fontsize="small")
