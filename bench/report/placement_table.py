"""The table of measured placements."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.apps.terminal import table_console

from ..measure.placements import MeasuredPlacement


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
