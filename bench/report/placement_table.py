"""Tables of measured placements, and of the simulated gain of a second device."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.apps.terminal import table_console

from ..measure.placements import MeasuredPlacement
from ..overlap.two_devices import ACCEPTED, Gain

__all__ = ["gains_table", "placement_table"]


def placement_table(measured: Sequence[MeasuredPlacement]) -> None:
    """Print the placements in this order, with the reasons of those that cannot run the pack."""
    from rich.table import Table

    table = Table("target", "draft", title="Full requests, scheduled, by placement")
    for title in ("tok/s", "worst, best", "of the best"):
        table.add_column(title, justify="right")
    best = max(each.tokens_per_second for each in measured)
    for each in measured:
        if each.refusal:
            continue
        spread = f"{1 / max(each.seconds):.1f}, {1 / min(each.seconds):.1f}"
        target, draft = each.placement.target, each.placement.draft or each.placement.target
        share = f"{each.tokens_per_second / best:.2f}"
        table.add_row(str(target), str(draft), f"{each.tokens_per_second:.1f}", spread, share)
    console = table_console()
    console.print(table)
    for each in measured:
        if each.refusal:
            console.print(f"Not measured: {each.placement}: {each.refusal}", markup=False, highlight=False)


def gains_table(gains: Sequence[Gain], conditions: str) -> None:
    """Print the speed-ups by cost of a draft step and acceptance rate."""
    from rich.table import Table

    table = Table("draft step", title="Drafting while the target verifies: speed-up over rounds without overlap")
    for accepted in ACCEPTED:
        table.add_column(f"{accepted:.0%} accepted", justify="right")
    for step in dict.fromkeys(gain.step for gain in gains):
        table.add_row(f"{step:g}", *(_gain(gain) for gain in gains if gain.step == step))
    console = table_console()
    console.print(table)
    console.print(f"{conditions}; -: not used, as no gain is expected", markup=False, highlight=False)


def _gain(gain: Gain) -> str:
    return f"{gain.speed_up:.2f}" if gain.plan.guesses else "-"
