"""KV states of a model whose drafts other devices make, between two of their requests."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log
from threading import Event

import numpy as np

from edgedecode import CapabilityError, ContextExceeded, EdgeDecodeError, Pair, SamplingOptions
from edgedecode.arrays import FloatArray
from edgedecode.decoding.loop import PREFILL_CHUNK, DecodeSetting, decode
from edgedecode.decoding.model import RowRequest, State
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Verdict
from edgedecode.errors import room_for
from edgedecode.sampling.row_draw import RowDraw
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sessions.memory_plan import sampling_holder

MOST_ROWS = 17
"""Rows of logits of a request, which a state plans memory for: the longest draft of a scheduler, and one."""
_ENDED = object()
"""What `next` returns after the last round: whatever a round yields is another object."""
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
    """A state and whose it is. key: the number of the key that asked. tokens: those that the state has a prefix of."""

    state: State
    key: int
    draw: RowDraw
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    tokens: list[int] = field(default_factory=list)


class VerifyStates:
    """Those of one model. A state that is used by a request is not among them meanwhile."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._every: list[Held] = []
        self._written: dict[str, tuple[Held, asyncio.Future[None], Event]] = {}
        self.halted = False
        """Whether nothing is written any more: the server closes, and its answers had their time to end."""

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

    def add_after(self, held: Held, work: asyncio.Future[None], *, unwanted: Event) -> None:
        """Keep a state once what is being written after it has ended. unwanted: ends it."""

        def ended(_: object) -> None:
            del self._written[held.id]
            self.add(held)

        self._written[held.id] = held, work, unwanted
        work.add_done_callback(ended)

    async def stop(self, id: str, *, key: int) -> None:
        """End what is being written after a session's tokens, if anything is."""
        if (found := self._written.get(id)) is not None and found[0].key == key:
            _, work, unwanted = found
            unwanted.set()
            await asyncio.wait({work})

    @property
    def full(self) -> bool:
        """Whether as many are kept as may be, with those that are being written in."""
        return len(self._every) + len(self._written) >= _MOST

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
        self._begin(held, tokens, keep=keep)

        def read(piece: Sequence[int], wanted: RowRequest) -> list[Row]:
            output = target.forward(piece, state, rows=wanted)
            size = target.card.vocabulary_size
            found = [] if wanted == "none" else [_row(each[:size], held.draw, top) for each in output.logits]
            state.keep(range(len(piece)))
            return found

        start = 0
        while len(tokens) - start > PREFILL_CHUNK or (rows == 0 and start < len(tokens)):
            piece = tokens[start : min(start + PREFILL_CHUNK, len(tokens) - rows)]
            turn.run(partial(read, piece, "none"))
            start += len(piece)
            closing()
        rest = tokens[start:]
        return turn.run(lambda: read(rest, range(len(rest) - rows, len(rest)))) if rows else []

    def write(
        self,
        held: Held,
        tokens: Sequence[int],
        *,
        keep: int,
        most: int,
        sampling: SamplingOptions,
        seed: int,
        told: Callable[[Sequence[int]], bool],
    ) -> None:
        """Write up to `most` tokens after these, as an answer without drafts would, until the model ends.

        told: is called with each, or with none after a piece of the tokens, and returns whether to go on. The models
        are free for others meanwhile.
        """
        shared, size = self._pair.shared, self._pair.target.card.vocabulary_size
        self._begin(held, tokens, keep=keep)
        with shared.budget.reserve(*sampling_holder(size, held.draw)):
            sampler = Sampler(sampling, vocabulary_size=size, row_draw=held.draw)
            setting = DecodeSetting(sampler, Noise(seed), ends=shared.manifest.end_ids)
            rounds = decode(
                shared.target, held.state, tokens=held.tokens, max_tokens=most, setting=setting, stats=Stats()
            )
            while (verdict := self._pair.turn.run(partial(next, rounds, _ENDED))) is not _ENDED:
                if not told(verdict.tokens if isinstance(verdict, Verdict) else ()):
                    return

    def _begin(self, held: Held, tokens: Sequence[int], *, keep: int) -> None:
        """Go back to the first `keep` positions, which `tokens` are to follow."""
        state, found = held.state, keep + len(tokens)
        if found > state.capacity:
            remedy = room_for(found, context=state.capacity, longest=self._pair.target.card.context)
            raise ContextExceeded.of(f"{found} tokens", state.capacity, remedy=remedy, room=0)
        self._pair.turn.run(lambda: state.crop(keep))
        if state.length != keep:
            raise _gone(held, keep)
        held.tokens[keep:] = tokens


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
