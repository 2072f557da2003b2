"""`bench --against`: opens the peers, compares, shows tables. The order of things."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from edgedecode import EdgeDecodeError, InputError, Pair
from edgedecode.decoding.model import LanguageModel

from ..report.bench_tables import Report, ratio_cell
from ..settings import Settings
from .peer import PEERS, PLAIN_MODE, PeerOrder, kind_of
from .peer_comparison import REHEARSED, closing, compare
from .peer_process import PeerProcess
from .peer_results import OURS, SCHEDULED, Comparison, PeerFamily, Summary, WayResult

__all__ = ["against", "check_names", "notes", "open_peers", "show_peer"]

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
