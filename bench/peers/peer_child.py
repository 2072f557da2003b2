"""The child's side of a peer: an order first, then requests, a line of JSON each. Run as a child, never imported.

What the peer's native code prints to standard output goes to standard error: the answers alone go to the parent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from time import perf_counter
from typing import Any, TextIO, cast

from edgedecode import EdgeDecodeError, InputError

from .peer import PEERS, Peer, PeerFactory, PeerOrder

__all__ = ["main", "serve"]


def main() -> None:
    """Serve on standard input and output until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers, find=_find)


def serve(requests: TextIO, answers: TextIO, *, find: Callable[[str], PeerFactory]) -> None:
    """Open what the first line orders and answer each further line; one that fails says why and ends it."""
    try:
        order = PeerOrder(**json.loads(requests.readline()))
        peer = find(order.name)(order)
        _say(answers, setting=peer.setting, modes=list(peer.modes))
        for line in requests:
            _say(answers, **_answered(peer, json.loads(line)))
    except EdgeDecodeError as error:
        _say(answers, refused=" ".join(str(error).split()))
    except ImportError as error:
        _say(answers, refused=f"{error.name or error} is not installed")
    except Exception as error:  # a foreign engine raises whatever it likes, and the others are to be measured
        _say(answers, refused=f"{type(error).__name__}: {' '.join(str(error).split())}")


def _find(name: str) -> PeerFactory:
    if name not in PEERS:
        raise InputError(f"there is no peer {name!r}; there are: {', '.join(PEERS)}")
    return cast(PeerFactory, resolve_name(PEERS[name]))


def _answered(peer: Peer, request: dict[str, Any]) -> dict[str, object]:
    reading = _Reading()
    started = perf_counter()
    tokens: Sequence[int] = peer.answer(request["mode"], request["prompt"], count=request["count"], read=reading)
    ended = perf_counter()
    assert reading.ended, "a peer says when it has read the prompt"
    return {
        "tokens": [int(token) for token in tokens],
        "seconds": ended - started,
        "first_seconds": reading.ended - started,
        "first_tokens": reading.tokens,
    }


class _Reading:
    """Notes when a prompt has been read."""

    def __init__(self) -> None:
        self.ended = 0.0
        self.tokens = 0

    def __call__(self, tokens: int) -> None:
        self.ended, self.tokens = perf_counter(), tokens


def _say(answers: TextIO, **event: object) -> None:
    answers.write(json.dumps(event) + "\n")
    answers.flush()
