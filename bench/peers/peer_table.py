"""Comparisons with peers as tables for people."""

from __future__ import annotations

from collections.abc import Callable

from ..report.bench_tables import Report, ratio_cell
from .peer import PLAIN_MODE
from .peer_results import OURS, SCHEDULED, Comparison, PeerFamily, Summary, WayResult

__all__ = ["notes", "show_peer"]


def show_peer(report: Report, comparison: Comparison, peer: str) -> None:
    """Show the families against one peer, with their mean and worst."""

    def speed(name: str, mode: str) -> Callable[[PeerFamily], str]:
        return lambda family: "-" if (way := family.way(name, mode)) is None else f"{way.whole:.1f}"

    def ratio(way: WayResult | None, field: str) -> str:
        return "-" if way is None else ratio_cell(getattr(way, field))

    columns: dict[str, Callable[[PeerFamily], str]] = {
        "family": lambda family: family.family,
        "ours plain": speed(OURS, PLAIN_MODE),
        "its plain": speed(peer, PLAIN_MODE),
        "ours/its": lambda family: ratio(family.way(peer, PLAIN_MODE), "whole_speed_up"),
        "ours scheduled": speed(OURS, SCHEDULED),
        "its draft, lookup at their best setting": lambda family: (
            ", ".join(f"{way.mode}: {way.whole:.1f}" for way in family.of(peer) if way.mode != PLAIN_MODE) or "-"
        ),
        "ours/its best, whole": lambda family: ratio(family.best_speculative(peer), "whole_speed_up"),
        "decode": lambda family: ratio(family.best_speculative(peer), "decode_speed_up"),
        "same text": lambda family: " ".join(str(way.same_texts) for way in family.of(peer)) + f" of {family.prompts}",
    }
    plain, best = comparison.plain(peer), comparison.speculative(peer)
    report.table(
        f"Against {peer}: tokens a second of whole requests, prompt reading included; "
        f"ours/its of whole requests and, last, of decoding alone",
        columns,
        comparison.families,
        summaries=[
            (name, "", "", _of(plain, f"{name}_whole"), "", "", _of(best, f"{name}_whole"), _of(best, f"{name}_decode"))
            for name in ("mean", "worst")
        ],
    )


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


def _of(summary: Summary | None, field: str) -> str:
    return "-" if summary is None else ratio_cell(getattr(summary, field))
