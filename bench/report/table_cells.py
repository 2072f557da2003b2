"""Rows of the table that shows the scheduler: cells as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from ..measure.family_results import FamilyResult

__all__ = ["scheduled_row", "speed_up_cell", "summary_row"]


def speed_up_cell(value: float | None) -> str:
    if value is None:
        return "-"
    colour = "red" if value < 1 else "green"
    return f"[{colour}]{value:.2f}[/]"


def scheduled_row(family: FamilyResult, *, fixed: bool) -> list[str]:
    arm, best = family.scheduled, family.hindsight
    spread = "-" if not arm.speed_ups else f"{arm.speed_ups[-1]:.2f}, {arm.speed_ups[0]:.2f}"
    hindsight = ["-"] * 4
    if best is not None:
        hindsight = [best.arm, f"{best.speed_up:.2f}", speed_up_cell(best.ratio), speed_up_cell(best.whole_ratio)]
    return [
        family.family,
        f"{family.plain_tokens_per_second:.1f}",
        speed_up_cell(arm.speed_up),
        spread,
        f"{arm.predicted:.2f}",
        speed_up_cell(arm.whole_speed_up),
        f"{1000 * family.plain_first_token_seconds:.1f}, {1000 * arm.first_token_seconds:.1f}",
        f"{arm.acceptance_length:.2f}",
        *(hindsight if fixed else []),
        f"{arm.divergent} of {family.prompts}",
    ]


def summary_row(
    name: str, pick: Callable[[list[float]], float], families: Sequence[FamilyResult], *, fixed: bool
) -> list[str]:
    """Return a row over all families of what can be summed up."""
    arms = [family.scheduled for family in families]
    bests = [family.hindsight for family in families if family.hindsight is not None]
    hindsight = [
        "",
        "",
        _picked(pick, [best.ratio for best in bests]),
        _picked(pick, [best.whole_ratio for best in bests]),
    ]
    return [
        name,
        "",
        _picked(pick, [arm.speed_up for arm in arms]),
        "",
        "",
        _picked(pick, [arm.whole_speed_up for arm in arms]),
        "",
        "",
        *(hindsight if fixed else []),
        str(sum(arm.divergent for arm in arms)) if pick is mean else "",
    ]


def _picked(pick: Callable[[list[float]], float], values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return speed_up_cell(pick(known) if known else None)
