"""`bench --against`: opens the peers, runs the comparison and prints its tables."""

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict

from edgedecode import EdgeDecodeError, InputError, Pair
from edgedecode.apps.terminal import progress
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import cause

from ..report.bench_tables import Report, ratio_cell, show_lines
from ..settings import Settings
from .peer import PEERS, PLAIN_MODE, PeerOrder, PeerProcess, kind_of
from .peer_comparison import OURS, REHEARSED, SCHEDULED, Comparison, PeerFamily, Summary, WayResult, compare


def against(arguments: Namespace, pair: Pair, *, settings: Settings, report: Report) -> dict[str, object]:
    """Compare the pair with the peers of `--against`, print the tables and return the content of the JSON line."""
    peers, reasons = open_peers(arguments, pair, capacity=settings.context)
    if not peers:
        show_lines([f"Not compared: {reason}" for reason in reasons])
        return {"families": [], "settings": {}, "summaries": {}, "not_compared": reasons}
    with ExitStack() as stack:
        for peer in peers:
            stack.enter_context(closing(peer))
        advance = stack.enter_context(progress("against peers", _answers(peers, settings)))
        comparison = compare(pair, peers, settings=settings, reasons=reasons, advance=advance)
    for name in comparison.settings:
        show_peer(report, comparison, name)
    show_lines(notes(comparison))
    return {
        "families": [asdict(family) for family in comparison.families],
        "settings": comparison.settings,
        "summaries": _summaries(comparison),
        "not_compared": list(comparison.reasons),
    }


def _summaries(comparison: Comparison) -> dict[str, object]:
    """Return the summaries of each peer, plain and speculative, and of the fastest speculation of any peer."""
    found = {f"{name} plain": comparison.plain(name) for name in comparison.settings}
    found |= {f"{name} speculative": comparison.speculative(name) for name in comparison.settings}
    found["best peer speculative"] = comparison.speculative()
    return {name: summary and asdict(summary) for name, summary in found.items()}


def _answers(peers: list[PeerProcess], settings: Settings) -> int:
    """Return the number of answers: the rehearsal, then each repetition with ours and one mode of each kind."""
    modes = sum(len(peer.modes) for peer in peers)
    kinds = 2 + sum(len({kind_of(mode) for mode in peer.modes}) for peer in peers)
    rehearsed = sum(min(REHEARSED, len(settings.of_family(family))) for family in settings.families)
    return modes * rehearsed + len(settings.prompts) * (2 + kinds * settings.repetitions)


def check_names(names: Sequence[str]) -> None:
    """Raise InputError for an unknown peer."""
    if missing := [name for name in names if name not in PEERS]:
        raise InputError(f"there is no peer {', '.join(missing)} to compare with; there are: {', '.join(PEERS)}")


def open_peers(arguments: Namespace, pair: Pair, *, capacity: int) -> tuple[list[PeerProcess], list[str]]:
    """Start each peer on the pair's pack with our number of threads and KV cache type.

    Return the peers that run, and a line with the reason for each that does not.
    """
    opened: list[PeerProcess] = []
    reasons: list[str] = []
    for name in dict.fromkeys(arguments.against):
        try:
            opened.append(PeerProcess(_order(name, arguments, pair, capacity=capacity), PEERS[name]))
        except (EdgeDecodeError, OSError) as error:
            reasons.append(f"{name}: {cause(error)}")
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
    """Print the families' comparison with one peer, with the mean and the worst family."""

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
        "its speculation, best setting of each kind": lambda family: (
            ", ".join(f"{way.mode}: {way.whole:.1f}" for way in family.of(peer) if way.mode != PLAIN_MODE) or "-"
        ),
        "ours/its best": lambda family: ratio(family.best_speculative(peer), "whole_speed_up"),
        "decoding alone": lambda family: ratio(family.best_speculative(peer), "decode_speed_up"),
        "same text": lambda family: " ".join(str(way.same_texts) for way in family.of(peer)) + f" of {family.prompts}",
    }
    plain, best = comparison.plain(peer), comparison.speculative(peer)
    report.table(
        f"Against {peer}: tokens/s and ratios ours/its for full requests, prefill included",
        columns,
        comparison.families,
        summaries=[
            (name, "", "", _of(plain, f"{name}_whole"), "", "", _of(best, f"{name}_whole"), _of(best, f"{name}_decode"))
            for name in ("mean", "worst")
        ],
    )


def notes(comparison: Comparison) -> list[str]:
    """Return lines with the summary over all peers, their settings and how these were chosen, and missing peers."""
    best = comparison.speculative()
    lines = [] if best is None else [_all_peers(best)]
    lines += [f"{name}: {setting}" for name, setting in comparison.settings.items()]
    if comparison.settings:
        lines.append(
            "For each kind of a peer's speculation, the table shows the setting that was fastest on the family's first "
            "prompts in a rehearsal; edgedecode's scheduler chose by itself, with the costs and acceptance rates it "
            "learnt in the rehearsal."
        )
    return lines + [f"Not compared: {reason}" for reason in comparison.reasons]


def _all_peers(best: Summary) -> str:
    return (
        f"Against the fastest speculation of any peer, by family: full requests {best.mean_whole:.2f} on average, at "
        f"worst {best.worst_whole:.2f} ({best.worst}); decoding {best.mean_decode:.2f}, at worst "
        f"{best.worst_decode:.2f}"
    )


def _of(summary: Summary | None, field: str) -> str:
    return "-" if summary is None else ratio_cell(getattr(summary, field))
