"""`bench --against`: opens the peers, compares, shows. The order of things."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict

from edgedecode import Pair

from ..report import Report
from ..settings import Settings
from .compare import closing, compare
from .opening import open_peers
from .peer import PLAIN_MODE, kind_of
from .process import PeerProcess
from .table import notes, peer_table

__all__ = ["Progress", "against"]

Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]


def against(
    arguments: Namespace, pair: Pair, *, settings: Settings, report: Report, progress: Progress
) -> dict[str, object]:
    """Compare the pair with the peers that `--against` names, show the tables and return what the JSON line holds."""
    opened = open_peers(arguments, pair, capacity=settings.context)
    if not opened.peers:
        report.lines([f"Not compared: {reason}" for reason in opened.reasons])
        return {"families": [], "settings": {}, "not_compared": opened.reasons}
    with closing(opened.peers), progress("against peers", _answers(opened.peers, settings)) as advance:
        comparison = compare(pair, opened.peers, settings=settings, reasons=opened.reasons, advance=advance)
    for name in comparison.settings:
        report.show(peer_table(comparison, name))
    report.lines(notes(comparison))
    return {
        "families": [asdict(family) for family in comparison.families],
        "settings": comparison.settings,
        "not_compared": list(comparison.reasons),
    }


def _answers(peers: list[PeerProcess], settings: Settings) -> int:
    """Return how many answers will be asked for: each mode once, then ours and one of each kind, every repetition."""
    modes = 2 + sum(len(peer.modes) for peer in peers)
    kinds = 2 + sum(len({kind_of(mode) for mode in (PLAIN_MODE, *peer.modes)}) for peer in peers)
    return len(settings.prompts) * (modes + kinds * settings.repetitions)
