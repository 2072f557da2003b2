"""KV states of a model whose drafts other devices make, between two of their requests."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log

import numpy as np

from edgedecode import CapabilityError, ContextExceeded, EdgeDecodeError, Pair
from edgedecode.arrays import FloatArray
from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.model import RowRequest, State
from edgedecode.errors import room_for
from edgedecode.sampling.row_draw import RowDraw

MOST_ROWS = 17
"""Rows of logits of a request, which a state plans memory for: the longest draft of a scheduler, and one."""
_MOST = 8
"""States that are kept between requests; the budget may hold fewer."""


class Lost(EdgeDecodeError):
    """A session that is not kept any more, or never was: HTTP 409. The client sends all tokens, without a session."""


@dataclass(frozen=True, slots=True)
class Row:
    """The likeliest tokens after a token, likeliest first, and how far each logit is below the first, exactly.

    logprob: of the first, in nats; that of another is `logprob` less its gap.
    """

    ids: list[int]
    gaps: list[float]
    logprob: float


@dataclass(slots=True)
class Held:
    """A state and whose it is. key: the number of the key that asked."""

    state: State
    key: int
    draw: RowDraw
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))


class VerifyStates:
    """Those of one model. A state that is used by a request is not among them meanwhile."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._every: list[Held] = []

    def open(self, *, capacity: int, key: int) -> Held:
        """Return a new state. Raises BudgetExceeded, and CapabilityError for a model that cannot drop rows."""
        shared = self._pair.shared
        if not shared.target.card.rollback:
            raise CapabilityError("the model has recurrent layers, which cannot take back a rejected draft")
        return shared.turn.run(lambda: Held(shared.target.new_state(capacity, rows=MOST_ROWS), key, shared.row_draw()))

    def take(self, id: str, *, key: int, keep: int) -> Held:
        """Take a state that can go on after `keep` positions. Raises Lost."""
        held = next((each for each in self._every if each.id == id and each.key == key), None)
        if held is None:
            raise Lost(f"there is no session {id[:40]!r} any more: send all tokens without it")
        self._every.remove(held)
        if not held.state.oldest_crop <= keep <= held.state.length:
            self._every.insert(0, held)  # the first to be closed
            raise _gone(held, keep)
        return held

    def add(self, held: Held) -> None:
        """Keep a state for its next request."""
        self._every.append(held)

    @property
    def full(self) -> bool:
        """Whether as many are kept as may be."""
        return len(self._every) >= _MOST

    def oldest(self) -> Callable[[], None] | None:
        """Take the state that was used longest ago, and return what closes it."""
        if not self._every:
            return None
        state = self._every.pop(0).state
        return lambda: self._pair.turn.run(state.close)

    def verified(
        self, held: Held, tokens: Sequence[int], *, keep: int, rows: int, top: int, closing: Callable[[], None]
    ) -> list[Row]:
        """Read tokens after the first `keep` positions; return the last `rows` of their rows, `top` ids of each.

        The models are free for others between two pieces of the tokens, where `closing` may raise. Raises
        ContextExceeded, and Lost if recurrent layers went back further than to `keep`.
        """
        state, turn, target = held.state, self._pair.turn, self._pair.target
        if keep + len(tokens) > state.capacity:
            found = keep + len(tokens)
            remedy = room_for(found, context=state.capacity, longest=target.card.context)
            raise ContextExceeded.of(f"{found} tokens", state.capacity, remedy=remedy, room=0)

        def read(piece: Sequence[int], wanted: RowRequest) -> list[Row]:
            output = target.forward(piece, state, rows=wanted)
            size = target.card.vocabulary_size
            found = [] if wanted == "none" else [_row(each[:size], held.draw, top) for each in output.logits]
            state.keep(range(len(piece)))
            return found

        turn.run(lambda: state.crop(keep))
        if state.length != keep:
            raise _gone(held, keep)
        start = 0
        while len(tokens) - start > PREFILL_CHUNK or (rows == 0 and start < len(tokens)):
            piece = tokens[start : min(start + PREFILL_CHUNK, len(tokens) - rows)]
            turn.run(partial(read, piece, "none"))
            start += len(piece)
            closing()
        rest = tokens[start:]
        return turn.run(lambda: read(rest, range(len(rest) - rows, len(rest)))) if rows else []


def _gone(held: Held, keep: int) -> Lost:
    return Lost(f"session {held.id!r} cannot go on after {keep} positions: send all tokens without it")


def _row(row: FloatArray, draw: RowDraw, top: int) -> Row:
    """Return a row's leading tokens, of equal logits the one of the smaller id first. The gaps are exact in float32."""
    first = draw.leading(row)
    if top == 1:
        return Row([first.index], [], -log(1 + first.others))
    ids = np.sort(draw.top(row, min(top, len(row))))
    ids = ids[np.argsort(-row[ids], kind="stable")]
    gaps = row[first.index] - row[ids[1:]]
    return Row(ids.tolist(), [float(str(each)) for each in gaps], -log(1 + first.others))
