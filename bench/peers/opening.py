"""Opens the peers that were asked for; one that cannot run here says why and the others are measured."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode import EdgeDecodeError, InputError, Pair
from edgedecode.decoding.model import LanguageModel

from .peer import PEERS, PLAIN_MODE
from .peer_process import PeerOrder, PeerProcess

__all__ = ["Opened", "check_names", "open_peers"]


@dataclass(frozen=True, slots=True)
class Opened:
    """The peers that run, and a line for each that does not."""

    peers: list[PeerProcess]
    reasons: list[str]


def check_names(names: Sequence[str]) -> None:
    """Raise InputError for a peer that there is not."""
    if missing := [name for name in names if name not in PEERS]:
        raise InputError(f"there is no peer {', '.join(missing)} to compare with; there are: {', '.join(PEERS)}")


def open_peers(arguments: Namespace, pair: Pair, *, capacity: int) -> Opened:
    """Start each peer on the pair's pack with our threads and kinds of keys and values."""
    opened = Opened([], [])
    for name in dict.fromkeys(arguments.against):
        try:
            peer = PeerProcess(_order(name, arguments, pair, capacity=capacity))
        except (EdgeDecodeError, OSError) as error:
            opened.reasons.append(f"{name}: {' '.join(str(error).split())}")
            continue
        assert PLAIN_MODE in peer.modes
        opened.peers.append(peer)
    return opened


def _order(name: str, arguments: Namespace, pair: Pair, *, capacity: int) -> PeerOrder:
    threads = _threads(arguments, pair.target) or os.cpu_count() or 1
    folders: Sequence[str] = getattr(arguments, f"against_{name}", None) or ()
    return PeerOrder(
        name=name,
        root=str(pair.root.resolve()),
        threads=threads,
        draft_threads=_threads(arguments, pair.draft) or threads,
        kv_type=pair.target.card.kv_types[0],
        capacity=capacity,
        ends=tuple(pair.manifest.generation.end_token_ids),
        folders=tuple(os.path.abspath(folder) for folder in folders),
    )


def _threads(arguments: Namespace, model: LanguageModel | None) -> int | None:
    asked: int | None = arguments.threads
    return asked or (model.card.threads if model is not None else None)
