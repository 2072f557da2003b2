"""A switching curve as tables, as one sentence, and as a chart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from edgedecode.options import DEFAULT_QUALITY
from edgedecode.pack.switch_curve import SwitchCurve, SwitchPoint
from edgedecode.plot_file import write_plot

from ..terminal import table_console
from .arms import ArmResult
from .switch_arms import SPECULATION, TARGET, quality_low


def show_curve(curve: SwitchCurve, arms: Mapping[str, ArmResult], *, name: str) -> None:
    """Print a line for the target, for speculation, for the draft model alone and for each threshold."""
    table = _table(f"{name}: {curve.prompts} prompts, switching by {curve.signal}")
    for arm, found in arms.items():
        label = arm if arm in (TARGET, SPECULATION, "draft") else f"{curve.signal} ≥ {arm}"
        table.add_row(*_cells(label, found, arms[TARGET]))
    table_console().print(table)


def show_held_out(arms: Mapping[str, ArmResult]) -> None:
    """Print the arms on prompts that chose nothing."""
    count = len(arms[TARGET].correct)
    table = _table(f"{count} held-out prompts")
    for arm, found in arms.items():
        table.add_row(*_cells(arm, found, arms[TARGET]))
    table_console().print(table)


def verdict(chosen: SwitchPoint | None, held_out: Mapping[str, ArmResult], *, place: str | None) -> str:
    """Return what a user can act on. place: where the curve was saved, if it was."""
    saved = f" Saved in {place}." if place else " Not saved: give --save to keep the curve in the pack."
    if chosen is None:
        kept = f"{DEFAULT_QUALITY:.0%} of the target's accuracy"
        return f"No measured threshold keeps {kept}: leave out --mode switch.{saved}"
    switch, speculation, target = (held_out[name] for name in ("switch", SPECULATION, TARGET))
    kept, least = _quality(switch, target) or ("an unknown share", "unknown: the target answers no held-out prompt")
    line = (
        f"--mode switch keeps {kept} of the target's accuracy (at least {least}) with {switch.target_share:.0%} of its "
        f"tokens, at {switch.speed / target.speed:.2f} of its speed."
    )
    if speculation.speed >= switch.speed:
        line += (
            f" Verified speculation is faster here, {speculation.speed / target.speed:.2f}, and loses nothing: prefer "
            f"it (--mode verify, the default)."
        )
    else:
        line += f" Verified speculation runs at {speculation.speed / target.speed:.2f} and loses nothing."
    return line + saved


def plot_curve(curve: SwitchCurve, arms: Mapping[str, ArmResult], path: Path, *, title: str) -> None:
    """Plot accuracy against the target's share, and against the speed. Raises InputError if it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure((10, 4.5), layout="constrained")
    by_share, by_speed = figure.subplots(1, 2, sharey=True)
    target = arms[TARGET]
    points = [found for arm, found in arms.items() if arm not in (TARGET, SPECULATION, "draft")]
    by_share.plot(
        [found.target_share for found in points], [found.accuracy for found in points], "o-", label="switching"
    )
    speeds = [found.speed / target.speed for found in points]
    by_speed.plot(speeds, [found.accuracy for found in points], "o-", label="switching")
    for name, marker in ((TARGET, "s"), (SPECULATION, "^"), ("draft", "v")):
        found = arms[name]
        by_share.plot(found.target_share, found.accuracy, marker, label=name)
        by_speed.plot(found.speed / target.speed, found.accuracy, marker, label=name)
    for axes, label in ((by_share, "share of tokens by the target"), (by_speed, "speed, of the target alone")):
        axes.axhline(DEFAULT_QUALITY * target.accuracy, color="grey", linewidth=1, linestyle=":")
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    by_share.set_ylabel("accuracy")
    by_speed.legend()
    figure.suptitle(f"{title}: {curve.prompts} prompts, {curve.engine}")
    write_plot(path, figure)


def _table(title: str) -> Table:
    table = Table(title=title)
    for column in ("answers by", "accuracy", "of the target's", "at least", "target's tokens", "speed"):
        table.add_column(column, justify="left" if column == "answers by" else "right")
    return table


def _cells(label: str, found: ArmResult, target: ArmResult) -> tuple[str, ...]:
    return (
        label,
        f"{found.accuracy:.1%}",
        *(_quality(found, target) or ("", "")),
        f"{found.target_share:.0%}",
        f"{found.speed / target.speed:.2f}",
    )


def _quality(found: ArmResult, target: ArmResult) -> tuple[str, str] | None:
    """Return the accuracy relative to the target's, and its lower bound; None if the target's is 0."""
    if not target.accuracy:
        return None
    return f"{found.accuracy / target.accuracy:.1%}", f"{quality_low(found.correct, target.correct):.1%}"
