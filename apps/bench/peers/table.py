"""Comparisons with peers as tables for people. Knows rich; computes nothing but means."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from .peer import PLAIN_MODE
from .results import OURS, SCHEDULED, Comparison, PeerFamily, WayResult

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["notes", "peer_table"]

_COLUMNS = (
    "family",
    "ours plain",
    "its plain",
    "ours/its",
    "ours scheduled",
    "its draft, lookup at their best setting",
    "ours/its best, whole",
    "decode",
    "same text",
)


def peer_table(comparison: Comparison, peer: str) -> Table:
    """Return the families against one peer, with their mean and worst."""
    from rich.table import Table

    table = Table(
        title=f"Against {peer}: tokens a second of whole requests, prompt reading included; "
        f"ours/its of whole requests and, last, of decoding alone",
        title_justify="left",
    )
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _COLUMNS[:1] + _COLUMNS[5:6] else "right")
    for family in comparison.families:
        table.add_row(*_row(family, peer))
    plain = [way.whole_speed_up for family in comparison.families if (way := family.way(peer, PLAIN_MODE))]
    best = [way for family in comparison.families if (way := family.best_speculative(peer))]
    table.add_section()
    for name, value in (("mean", fmean), ("worst", min)):
        whole, decode = [way.whole_speed_up for way in best], [way.decode_speed_up for way in best]
        table.add_row(
            name,
            "",
            "",
            _ratio(value(plain)) if plain else "-",
            "",
            "",
            _ratio(value(whole)) if whole else "-",
            _ratio(value(decode)) if decode else "-",
            "",
        )
    return table


def notes(comparison: Comparison) -> list[str]:
    """Return what every peer runs with, how settings were chosen, and who is missing and why."""
    lines = [f"{name}: {setting}" for name, setting in comparison.settings.items()]
    if lines:
        lines.append(
            "Of each kind of a peer's speculation the setting that was fastest on these prompts in a pass before; ours "
            "chose by itself, having seen the costs and none of the answers."
        )
    return lines + [f"Not compared: {reason}" for reason in comparison.reasons]


def _row(family: PeerFamily, peer: str) -> Sequence[str]:
    ours, scheduled = family.way(OURS, PLAIN_MODE), family.way(OURS, SCHEDULED)
    plain, best = family.way(peer, PLAIN_MODE), family.best_speculative(peer)
    others = [way for way in family.of(peer) if way.mode != PLAIN_MODE]
    return (
        family.family,
        _speed(ours),
        _speed(plain),
        _ratio(plain.whole_speed_up) if plain else "-",
        _speed(scheduled),
        ", ".join(f"{way.mode}: {way.whole:.1f}" for way in others) or "-",
        _ratio(best.whole_speed_up) if best else "-",
        _ratio(best.decode_speed_up) if best else "-",
        " ".join(f"{way.same_texts}" for way in family.of(peer)) + f" of {family.prompts}",
    )


def _speed(way: WayResult | None) -> str:
    return "-" if way is None else f"{way.whole:.1f}"


def _ratio(value: float) -> str:
    colour = "red" if value < 1 else "green"
    return f"[{colour}]{value:.2f}[/]"
