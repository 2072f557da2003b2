"""A target on a server, as a `LanguageModel`: a pass sends the tokens that the server lacks, and gets rows of top-K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.model import AdapterUse, LanguageModel, ModelCard, Output, RowRequest, State
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget, Lease
from edgedecode.text.tokenizer import TextTokens
from edgedecode.user_notices import notice

from .. import row_state
from .connection import Connection, Late, Refused, TargetFailed
from .servers import Kind, Rows, rows_of
from .token_stream import FEW, Asked, Begun, TokenStream

_TOKEN_NBYTES = 8
_AGAIN_SECONDS = 30.0
"""After which an answer asks a server again that did not answer."""
_REFUSED = (400, 404, 422)
"""Statuses of a request that would be refused again."""


class RemoteState:
    """The tokens of a sequence. Those up to `agreed` are the server's too, by its last reply.

    own: the state of the device's model, which goes on where the server does not answer; None: nothing does.
    """

    oldest_crop = 0

    def __init__(self, capacity: int, lease: Lease, own: State | None) -> None:
        self.capacity, self._lease, self.own = capacity, lease, own
        self.tokens: list[int] = []
        self.rows: list[int] = []
        self.agreed = self._own_agreed = 0
        self.session, self.top, self.seed = "", 1, 0
        self.sampling: Mapping[str, float] = {}
        self.streams, self.switches, self.limit = False, False, 1
        self.stream: TokenStream | None = None
        self.refused = False
        """Whether the server refused to write in this answer: it is asked for rows then."""
        self.alone = ""
        """Why the device's model goes on alone in this answer; empty: it does not."""

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes + (0 if self.own is None else self.own.nbytes)

    def keep(self, path: Sequence[int]) -> None:
        row_state.check_kept(path, pending=len(self.rows))
        row_state.check_chain(path)
        self.tokens += self.rows[: len(path)]
        self.crop(len(self.tokens), begins=False)

    def crop(self, length: int, *, begins: bool = True) -> None:
        """Drop every pending row, then roll back. An answer begins with that, and asks the server again."""
        row_state.check_crop(length, settled=len(self.tokens))
        self.rows.clear()
        del self.tokens[length:]
        self.agreed, self._own_agreed = min(self.agreed, length), min(self._own_agreed, length)
        if begins:
            self.alone, self.refused = "", False
            self.end_stream()

    def end_stream(self) -> None:
        """Stop what the server writes. Its session, if there is one, holds all but the last token that came.

        Where none came, it may have gone back to what the request kept, or have seen nothing of the request.
        """
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()
            self.session = stream.asked.session
            begun = stream.asked
            held = stream.length - 1 if stream.length > len(begun.tokens) else min(self.agreed, begun.keep)
            self.agreed = min(held, len(self.tokens))

    def close(self) -> None:
        self.end_stream()
        self._lease.release()
        if self.own is not None:
            self.own.close()

    def read_alone(self, model: LanguageModel, rows: int) -> FloatArray:
        """Return the rows of the device's model after the last tokens, which it reads in chunks."""
        assert self.own is not None
        every, own = [*self.tokens, *self.rows], self.own
        own.crop(min(own.length, self._own_agreed, len(every) - rows))
        while len(every) - (start := own.length) > max(PREFILL_CHUNK, rows):
            chunk = every[start : min(start + PREFILL_CHUNK, len(every) - rows)]
            model.forward(chunk, own, rows="none")
            own.keep(range(len(chunk)))
        rest = every[start:]
        output = model.forward(rest, own, rows=range(len(rest) - rows, len(rest)))
        own.keep(range(len(rest)))
        self._own_agreed = len(every)
        return output.logits


class RemoteModel:
    """Implements `LanguageModel`. A row has the logits of the server's likeliest tokens, and -inf for all others.

    spare: the device's model, which goes on where the server does not answer; None: that raises TargetFailed.
    """

    def __init__(
        self,
        connection: Connection,
        kind: Kind,
        card: ModelCard,
        *,
        pieces: TextTokens,
        end: int,
        budget: Budget,
        spare: LanguageModel | None = None,
    ) -> None:
        self.card, self.connection = card, connection
        self._kind, self._pieces, self._end, self._budget, self._spare = kind, pieces, end, budget, spare
        self._buffer: FloatArray = np.empty((0, card.rows), np.float32)
        self._filled: list[IntArray] = []
        self._silent_until = 0.0

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> RemoteState:
        row_state.check_capacity(capacity, self.card)
        nbytes = _TOKEN_NBYTES * capacity + 4 * self.card.rows * max(0, rows - len(self._buffer))
        lease = self._budget.reserve("target on a server", nbytes)
        try:
            own = None if self._spare is None else self._spare.new_state(capacity, rows=rows)
        except BaseException:
            lease.release()
            raise
        if rows > len(self._buffer):
            self._buffer, self._filled = np.full((rows, self.card.rows), -np.inf, np.float32), []
        return RemoteState(capacity, lease, own)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        """Append `tokens`. They are sent once rows are asked for, so that a round is one request.

        Raises CapabilityError for trees and adapters, TargetFailed.
        """
        assert isinstance(state, RemoteState)
        count = len(tokens)
        if adapter is not None or (
            parents is not None and not row_state.continues(parents, count=count, after=state.pending)
        ):
            raise CapabilityError("a target on a server reads chains without adapters: leave out trees and --adapter")
        row_state.check_tokens(tokens, self.card)
        row_state.check_room(count, used=state.length + state.pending, capacity=state.capacity)
        asked = row_state.wanted_rows(rows, count=count)
        state.rows += tokens
        if not len(asked):
            return Output(self._buffer[:0])
        first = min(asked)
        return Output(self._rows(state, count - first)[[each - first for each in asked]])

    def close(self) -> None:
        self.connection.close()
        if self._spare is not None:
            self._spare.close()

    def _rows(self, state: RemoteState, count: int) -> FloatArray:
        """Return the last rows of a state: the server's or, if that fails and there is one, the device's model's."""
        if self._spare is not None and not state.alone and monotonic() < self._silent_until:
            state.alone = f"{self.connection.host} did not answer a moment ago"
        if not state.alone:
            try:
                return self._dense(self._streamed(state, count) or self._asked(state, count))
            except TargetFailed as error:
                if self._spare is None:
                    raise
                self._silent_until, state.alone = monotonic() + _AGAIN_SECONDS, str(error)
                notice(f"{state.alone}: the device's model goes on alone, which may write something else")
        assert self._spare is not None
        return state.read_alone(self._spare, count)

    def _streamed(self, state: RemoteState, count: int) -> Rows | None:
        """Return a row with the token that the server itself writes next; None: ask for rows.

        A plain round then takes no way to the server and back. Raises TargetFailed if there are no rows to ask for.
        """
        every, kind = [*state.tokens, *state.rows], self._kind
        if count > 1 or (state.stream is not None and not state.stream.continues(every)):
            state.end_stream()
        if count > 1 or kind.write is None or state.refused:
            return None
        if kind.ask is not None and state.stream is None:
            drawn = state.sampling.get("temperature") and (state.switches or not kind.verifies)
            if drawn or not state.streams:
                return None
        while True:
            begins = state.stream is None
            try:
                if state.stream is None:
                    most = FEW if state.switches else state.limit
                    asked = Asked(every, min(state.agreed, len(every) - 1), rows=0, top=0, session=state.session)
                    begun = Begun(asked, most, state.sampling, state.seed, self._pieces, self._end)
                    state.stream = TokenStream(self.connection, kind.write, begun, size=self.card.vocabulary_size)
                return [(np.array([state.stream.next()]), np.zeros(1, np.float32))]
            except TargetFailed as error:  # also at the end of as many tokens as were asked for
                state.end_stream()
                if isinstance(error, Late) or (begins and kind.ask is None):
                    raise
                state.refused = isinstance(error, Refused) and error.status in _REFUSED
                if begins:
                    return None

    def _asked(self, state: RemoteState, count: int) -> Rows:
        every = [*state.tokens, *state.rows]
        top = min(state.top, self.card.top_rows)
        asked = Asked(every, min(state.agreed, len(every) - count), count, top, state.session)
        found = rows_of(self.connection, self._kind, asked, size=self.card.vocabulary_size)
        state.session, state.agreed = asked.session, len(every)
        return found

    def _dense(self, found: Rows) -> FloatArray:
        """Return rows of the whole vocabulary. Only what the last ones had is cleared: a row may have 600 kB."""
        for place, ids in enumerate(self._filled):
            self._buffer[place, ids] = -np.inf
        self._filled = [ids for ids, _ in found]
        for place, (ids, logits) in enumerate(found):
            self._buffer[place, ids] = logits
        return self._buffer[: len(found)]
