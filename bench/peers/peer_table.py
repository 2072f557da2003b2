"""Comparisons with peers as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .peer import PLAIN_MODE
from .peer_results import OURS, SCHEDULED, Comparison, PeerFamily, Summary, WayResult

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
    plain, best = comparison.plain(peer), comparison.speculative(peer)
    table.add_section()
    for name in ("mean", "worst"):
        table.add_row(
            *(name, "", "", _summed(plain, f"{name}_whole"), "", ""),
            *(_summed(best, f"{name}_whole"), _summed(best, f"{name}_decode"), ""),
        )
    return table


def notes(comparison: Comparison) -> list[str]:
    """Return the sum over all peers, what each runs with, how settings were chosen, and who is missing and why."""
    best = comparison.speculative()
    lines = [] if best is None else [_all_peers(best)]
    lines += [f"{name}: {setting}" for name, setting in comparison.settings.items()]
    if comparison.settings:
        lines.append(
            "Of each kind of a peer's speculation the setting that was fastest on the family's first prompts in a pass "
            "before is shown; ours chose by itself, with the costs and acceptance it learnt in that pass."
        )
    return lines + [f"Not compared: {reason}" for reason in comparison.reasons]


def _all_peers(best: Summary) -> str:
    return (
        f"Against whichever peer's speculation is the fastest, by family: whole requests {best.mean_whole:.2f} on "
        f"average, at worst {best.worst_whole:.2f} ({best.worst}); decoding {best.mean_decode:.2f}, at worst "
        f"{best.worst_decode:.2f}"
    )


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


def _summed(summary: Summary | None, field: str) -> str:
    return "-" if summary is None else _ratio(getattr(summary, field))


def _ratio(value: float) -> str:
    colour = "red" if value < 1 else "green"
    return f"[{colour}]{value:.2f}[/]"
