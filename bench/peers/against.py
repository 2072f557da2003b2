"""`bench --against`: opens the peers, compares, shows. The order of things."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from edgedecode import EdgeDecodeError, InputError, Pair
from edgedecode.decoding.model import LanguageModel

from ..report.bench_tables import Report
from ..settings import Settings
from .peer import PEERS, PLAIN_MODE, PeerOrder, kind_of
from .peer_comparison import REHEARSED, closing, compare
from .peer_process import PeerProcess
from .peer_results import Comparison
from .peer_table import notes, show_peer

__all__ = ["against", "check_names", "open_peers"]

Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]


def against(
    arguments: Namespace, pair: Pair, *, settings: Settings, report: Report, progress: Progress
) -> dict[str, object]:
    """Compare the pair with the peers that `--against` names, show the tables and return what the JSON line holds."""
    peers, reasons = open_peers(arguments, pair, capacity=settings.context)
    if not peers:
        report.lines([f"Not compared: {reason}" for reason in reasons])
        return {"families": [], "settings": {}, "summaries": {}, "not_compared": reasons}
    with closing(peers), progress("against peers", _answers(peers, settings)) as advance:
        comparison = compare(pair, peers, settings=settings, reasons=reasons, advance=advance)
    for name in comparison.settings:
        show_peer(report, comparison, name)
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


def check_names(names: Sequence[str]) -> None:
    """Raise InputError for a peer that there is not."""
    if missing := [name for name in names if name not in PEERS]:
        raise InputError(f"there is no peer {', '.join(missing)} to compare with; there are: {', '.join(PEERS)}")


def open_peers(arguments: Namespace, pair: Pair, *, capacity: int) -> tuple[list[PeerProcess], list[str]]:
    """Start each peer on the pair's pack with our threads and kinds of keys and values.

    Returns those that run, and a line for each that does not: it says why, and the others are measured.
    """
    opened: list[PeerProcess] = []
    reasons: list[str] = []
    for name in dict.fromkeys(arguments.against):
        try:
            peer = PeerProcess(_order(name, arguments, pair, capacity=capacity))
        except (EdgeDecodeError, OSError) as error:
            reasons.append(f"{name}: {' '.join(str(error).split())}")
            continue
        assert PLAIN_MODE in peer.modes
        opened.append(peer)
    return opened, reasons


def _order(name: str, arguments: Namespace, pair: Pair, *, capacity: int) -> PeerOrder:
    threads = _threads(arguments, pair.target) or os.cpu_count() or 1
    return PeerOrder(
        name=name,
        root=str(pair.root.resolve()),
        threads=threads,
        draft_threads=_threads(arguments, pair.draft) or threads,
        kv_type=pair.target.card.kv_type,
        capacity=capacity,
        ends=tuple(pair.manifest.generation.end_token_ids),
    )


def _threads(arguments: Namespace, model: LanguageModel | None) -> int | None:
    asked: int | None = arguments.threads
    return asked or (model.card.threads if model is not None else None)
