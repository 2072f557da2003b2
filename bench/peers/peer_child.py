"""The child process of a peer. Reads an order and then requests, one JSON line each, and writes a JSON line for each.

Output of the peer's native code to standard output is redirected to standard error, so that the parent reads answers
only.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from time import perf_counter
from typing import Any, TextIO, cast

from edgedecode import EdgeDecodeError, InputError

from .peer import PEERS, Peer, PeerFactory, PeerOrder


def main() -> None:
    """Serve on standard input and output until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers, find=_find)


def serve(requests: TextIO, answers: TextIO, *, find: Callable[[str], PeerFactory]) -> None:
    """Open the peer that the first line orders and answer each further line; on an error, send the reason and end."""
    try:
        order = PeerOrder(**json.loads(requests.readline()))
        peer = find(order.name)(order)
        _send(answers, setting=peer.setting, modes=list(peer.modes))
        for line in requests:
            _send(answers, **_answered(peer, json.loads(line)))
    except EdgeDecodeError as error:
        _send(answers, refused=" ".join(str(error).split()))
    except ImportError as error:
        _send(answers, refused=f"{error.name or error} is not installed")
    except Exception as error:  # a peer may raise anything, and must not stop the measurement of the others
        _send(answers, refused=f"{type(error).__name__}: {' '.join(str(error).split())}")


def _find(name: str) -> PeerFactory:
    if name not in PEERS:
        raise InputError(f"there is no peer {name!r}; there are: {', '.join(PEERS)}")
    return cast(PeerFactory, resolve_name(PEERS[name]))


def _answered(peer: Peer, request: dict[str, Any]) -> dict[str, object]:
    prefill = _Prefill()
    started = perf_counter()
    tokens: Sequence[int] = peer.answer(request["mode"], request["prompt"], count=request["count"], read=prefill)
    ended = perf_counter()
    assert prefill.ended, "a peer must call `read` at the end of prefill"
    return {
        "tokens": [int(token) for token in tokens],
        "seconds": ended - started,
        "first_seconds": prefill.ended - started,
        "first_tokens": prefill.tokens,
    }


class _Prefill:
    """Records the end of prefill, and the number of tokens known by then."""

    def __init__(self) -> None:
        self.ended = 0.0
        self.tokens = 0

    def __call__(self, tokens: int) -> None:
        self.ended, self.tokens = perf_counter(), tokens


def _send(answers: TextIO, **event: object) -> None:
    answers.write(json.dumps(event) + "\n")
    answers.flush()
