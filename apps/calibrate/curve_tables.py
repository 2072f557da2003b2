"""A switching curve as tables, and as one sentence."""

from collections.abc import Mapping

from rich.table import Table

from edgedecode.options import DEFAULT_QUALITY
from edgedecode.pack.switch_curve import SwitchPoint

from ..terminal import table_console
from .arms import SPECULATION, TARGET, ArmResult, quality_low


def show_arms(title: str, arms: Mapping[str, ArmResult], *, signal: str) -> None:
    """Print a line for each arm; those of a threshold have its number as their name."""
    table = Table(title=title)
    for column in ("answers by", "accuracy", "of the target's", "at least", "target's tokens", "speed"):
        table.add_column(column, justify="left" if column == "answers by" else "right")
    target = arms[TARGET]
    for arm, found in arms.items():
        label = f"{signal} ≥ {arm}" if arm[0].isdigit() else arm
        quality = _quality(found, target) or ("", "")
        share, speed = f"{found.target_share:.0%}", f"{found.speed / target.speed:.2f}"
        table.add_row(label, f"{found.accuracy:.1%}", *quality, share, speed)
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


def _quality(found: ArmResult, target: ArmResult) -> tuple[str, str] | None:
    """Return the accuracy relative to the target's, and its lower bound; None if the target's is 0."""
    if not target.accuracy:
        return None
    return f"{found.accuracy / target.accuracy:.1%}", f"{quality_low(found.correct, target.correct):.1%}"
