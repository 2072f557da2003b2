"""The results of `eval --tasks` as tables and as a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgedecode.plot_file import write_plot
from edgedecode.text.printable import shown

from ..tasks.intervals import Interval, share_interval
from ..terminal import table_console
from .accuracy import ArmAccuracy

__all__ = ["plot_accuracy", "show_accuracy"]

_REASONS = 3
"""Reasons that are listed for an arm's wrong code."""


def show_accuracy(
    arms: Sequence[ArmAccuracy], *, conditions: str, perplexities: Mapping[str, float | None], references: int
) -> None:
    """Print accuracy by family and arm, then each arm's total with its speed. references: those of the perplexity."""
    console = table_console()
    console.print(shown(conditions), highlight=False, markup=False)
    families = list(arms[0].families)
    if families:
        _show_families(arms, families)
    _show_arms(arms)
    first = arms[0]
    if written := first.answers - len(first.results):
        console.print(f"{written} of {first.answers} tasks have no reference: answered, not judged", highlight=False)
    for arm in arms:
        if arm.incomplete:
            line = f"{arm.name}: {arm.incomplete} of {arm.answers} conversations exceed the context, wrong if judged"
            console.print(shown(line), highlight=False, markup=False)
        for reason, count in arm.reasons.most_common(_REASONS):
            console.print(shown(f"{arm.name}, wrong code, {count} times: {reason}"), highlight=False, markup=False)
    for model, value in perplexities.items():
        text = "none of the references fits the context" if value is None else f"{value:.4g}"
        console.print(shown(f"perplexity of {references} references, {model}: {text}"), highlight=False, markup=False)


def _show_families(arms: Sequence[ArmAccuracy], families: Sequence[str]) -> None:
    from rich.table import Table

    table = Table(title="correct answers, with 95% intervals", title_justify="left", box=None, pad_edge=False)
    table.add_column("family")
    table.add_column("tasks", justify="right")
    for arm in arms:
        table.add_column(shown(arm.name), justify="right")
    for family in families:
        found = [arm.families[family] for arm in arms]
        cells = [_percent(share_interval(sum(each), len(each))) for each in found]
        table.add_row(shown(family), str(len(found[0])), *cells)
    if len(families) > 1:
        shares = [arm.share for arm in arms]
        table.add_row("all", str(len(arms[0].results)), *[_percent(share) for share in shares])
    table_console().print(table)


def _show_arms(arms: Sequence[ArmAccuracy]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    first = arms[0]
    table.add_column("answers by")
    judged = bool(first.results)
    rows: dict[str, list[str]] = {}  # by column; one without any text is left out
    if judged:
        rows["accuracy"] = [_percent(arm.share) for arm in arms]
        rows[f"accuracy / {shown(first.name)}"] = ["", *(_times(arm.ratio(first)) for arm in arms[1:])]
    rows["tokens"] = [str(arm.tokens) for arm in arms]
    rows["tokens/s"] = [f"{arm.tokens_per_second:.1f}" for arm in arms]
    speeds = [arm.tokens_per_second / (first.tokens_per_second or 1) for arm in arms[1:]]
    rows[f"speed / {shown(first.name)}"] = ["", *(f"× {speed:.2f}" for speed in speeds)]
    rows["tokens by the target"] = [f"{arm.target_share:.1%}" for arm in arms]
    if any(arm.taken_back for arm in arms):
        rows["taken back"] = [str(arm.taken_back) for arm in arms]
    columns = [column for column, cells in rows.items() if any(cells)]
    for column in columns:
        table.add_column(column, justify="right")
    for number, arm in enumerate(arms):
        table.add_row(shown(arm.name), *(rows[column][number] for column in columns))
    table_console().print(table)


def _percent(share: Interval | None) -> str:
    return "" if share is None else f"{share.value:.1%} ({100 * share.low:.1f}–{100 * share.high:.1f})"


def _times(ratio: Interval | None) -> str:
    return "–" if ratio is None else f"× {ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def plot_accuracy(arms: Sequence[ArmAccuracy], path: Path, *, conditions: str) -> None:
    """Plot each arm's accuracy, with its interval, against its speed. Raises InputError if it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure((7, 5), layout="constrained")
    axes = figure.subplots()
    for arm in arms:
        share = arm.share or Interval(0.0, 0.0, 0.0)
        errors = [[share.value - share.low], [share.high - share.value]]
        axes.errorbar(
            [arm.tokens_per_second], [share.value], yerr=errors, marker="o", linestyle="none", capsize=3, label=arm.name
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens per second, prompts included")
    axes.set_ylabel("share of correct answers, with 95% intervals")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.supxlabel(conditions, fontsize="xx-small", wrap=True)
    write_plot(path, figure)
