"""`bench --against`: opens the peers, compares, shows. The order of things."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict

from edgedecode import Pair

from ..report.bench_tables import Report
from ..settings import Settings
from .opening import open_peers
from .peer import kind_of
from .peer_comparison import REHEARSED, closing, compare
from .peer_process import PeerProcess
from .peer_results import Comparison
from .peer_table import notes, peer_table

__all__ = ["Progress", "against"]

Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]


def against(
    arguments: Namespace, pair: Pair, *, settings: Settings, report: Report, progress: Progress
) -> dict[str, object]:
    """Compare the pair with the peers that `--against` names, show the tables and return what the JSON line holds."""
    opened = open_peers(arguments, pair, capacity=settings.context)
    if not opened.peers:
        report.lines([f"Not compared: {reason}" for reason in opened.reasons])
        return {"families": [], "settings": {}, "summaries": {}, "not_compared": opened.reasons}
    with closing(opened.peers), progress("against peers", _answers(opened.peers, settings)) as advance:
        comparison = compare(pair, opened.peers, settings=settings, reasons=opened.reasons, advance=advance)
    for name in comparison.settings:
        report.show(peer_table(comparison, name))
    report.lines(notes(comparison))
    return {
        "families": [asdict(family) for family in comparison.families],
        "settings": comparison.settings,
        "summaries": _summaries(comparison),
        "not_compared": list(comparison.reasons),
    }


def _summaries(comparison: Comparison) -> dict[str, object]:
    """Return what each peer comes to, plain and speculative, and the fastest of all."""
    found = {f"{name} plain": comparison.plain(name) for name in comparison.settings}
    found |= {f"{name} speculative": comparison.speculative(name) for name in comparison.settings}
    found["best peer speculative"] = comparison.speculative()
    return {name: summary and asdict(summary) for name, summary in found.items()}


def _answers(peers: list[PeerProcess], settings: Settings) -> int:
    """Return how many answers will be asked for: the pass before, then ours and one of each kind, every repetition."""
    modes = sum(len(peer.modes) for peer in peers)
    kinds = 2 + sum(len({kind_of(mode) for mode in peer.modes}) for peer in peers)
    rehearsed = sum(min(REHEARSED, len(settings.of_family(family))) for family in settings.families)
    return modes * rehearsed + len(settings.prompts) * (2 + kinds * settings.repetitions)
