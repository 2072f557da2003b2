"""A chart of the scheduler's speed-up on each task family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..measure.family_results import FamilyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR_WIDTH = 0.4


def speed_figure(families: Sequence[FamilyResult], *, conditions: str) -> Figure:
    """Return a figure with the bars S and W for each family; a dash marks families without comparable text."""
    from matplotlib.figure import Figure

    figure = Figure((max(6.0, len(families)), 5), layout="constrained")
    axes = figure.subplots()
    bars = {
        "S: after the first token": [family.scheduled.speed_up for family in families],
        "W: full requests": [family.scheduled.whole_speed_up for family in families],
    }
    for number, (label, ratios) in enumerate(bars.items()):
        places = [place + number * _BAR_WIDTH for place in range(len(families))]
        container = axes.bar(places, [ratio or 0 for ratio in ratios], _BAR_WIDTH, label=label)
        axes.bar_label(container, ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios], fontsize="small")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks(
        [place + _BAR_WIDTH / 2 for place in range(len(families))],
        [family.family for family in families],
        rotation=30,
        ha="right",
    )
    axes.set_ylabel("speed-up over plain decoding")
    axes.set_title("Scheduled over plain decoding")
    axes.legend()
    figure.supxlabel(conditions, fontsize="xx-small", wrap=True)
    return figure
