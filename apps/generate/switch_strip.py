"""A chart of one answer: the draft model's uncertainty before each token, and which model wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedecode import Stats
from edgedecode.plot_file import write_plot

_DRAFT, _TARGET = "#d9a520", "#3b6fb6"
_LABELS = 80
"""Most tokens that are written below their bars."""


def plot_strip(path: Path, stats: Stats, tokens: Sequence[str]) -> None:
    """Plot the signals of an answer. tokens: their texts, shown if there is one for each signal."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    signals, limit = stats.signals, stats.handed_over_at
    figure = Figure((max(6.0, 0.22 * len(signals)), 3.2), layout="constrained")
    axes = figure.subplots()
    colours = [_DRAFT if value < limit else _TARGET for value in signals]
    axes.bar(range(len(signals)), signals, color=colours, width=0.9)
    axes.axhline(limit, color="black", linewidth=1, linestyle=":")
    axes.set_yscale("symlog", linthresh=max(limit, 1e-3))
    axes.set_ylabel("uncertainty")
    if len(tokens) == len(signals) <= _LABELS:
        labels = [repr(token)[1:-1].replace("$", r"\$") for token in tokens]
        axes.set_xticks(range(len(tokens)), labels, rotation=90, fontsize="small", family="monospace")
    shares = f"{stats.unverified_tokens} tokens by the draft model, {stats.verified_tokens} by the target"
    axes.set_title(f"{shares}; hand-over at {limit:.3g}")
    axes.legend(handles=[Patch(color=_DRAFT, label="draft model writes"), Patch(color=_TARGET, label="target writes")])
    write_plot(path, figure)
