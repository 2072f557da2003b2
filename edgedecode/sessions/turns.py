"""The turns of a conversation: their tokens, what the KV cache keeps of them, and which are dropped for room."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from weakref import finalize

from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import BudgetExceeded, ContextExceeded, room_for
from edgedecode.options import SessionDetails, SessionOptions, WhenFull, planned_context
from edgedecode.sampling.row_draw import RowDraw
from edgedecode.sampling.sampler import Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Reply, TurnsDropped
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.target_reading import TargetReading
from edgedecode.text.encoder import PLANNED_BYTES_PER_TOKEN, Encoder
from edgedecode.text.messages import Message
from edgedecode.text.transcript import Transcript, Turn
from edgedecode.user_notices import notice

if TYPE_CHECKING:  # most sessions use no adapter
    from edgedecode.adapters.pack_adapters import ActiveAdapter, AdapterChoice

LEAST_ROOM = 8
"""Turns are dropped if an answer would have less than 1/LEAST_ROOM of the context."""


class Turns:
    """A session's transcript and KV cache. The session calls it with its own lock or, in an answer, the pair's.

    adapter: of the next message, or None.
    """

    def __init__(
        self, shared: Resources, options: SessionOptions, *, messages: Sequence[Message], rows: int, tree: bool
    ) -> None:
        """rows: of logits that a pass computes at most. tree: drafts may branch."""
        self._when_full, self._most = options.details.when_full, shared.target.card.context
        context = planned_context(options.context, self._most)
        with ExitStack() as undo:
            self._shared = shared
            self._choice: AdapterChoice | None = None
            undo.callback(self._release_adapters)
            self.adapter = self.chosen(options.adapter, scale=options.details.adapter_scale)
            self._encoder = Encoder(
                shared.tokenizer,
                capacity=context,
                longest=self._most,
                budget=shared.budget,
                arguments=_template_arguments(shared, options.details),
                in_turn=shared.turn.run,
            )
            undo.callback(self._encoder.close)
            self.transcript = Transcript(shared.tokenizer, messages, source=self._encoder)
            self.state = shared.target.new_state(context, rows=rows, tree=tree)
            undo.pop_all()
        self.reading = TargetReading(self.state)
        self._answering = self.adapter
        """The adapter of the running answer, which keeps it when another one is chosen for the next message."""
        finalize(self, self._encoder.close)  # for a session that is garbage-collected without being closed

    def chosen(self, name: str | None, *, scale: float, more: bool = False) -> ActiveAdapter | None:
        """Load an adapter and hold it for this conversation. As `AdapterChoice.choose`."""
        if self._choice is None:
            if name is None:
                return None
            self._choice = self._shared.adapters().choice()
            finalize(self, self._choice.release)
        return self._choice.choose(name, scale=scale, more=more)

    @property
    def context(self) -> int:
        """The longest conversation in tokens."""
        return self.state.capacity

    @property
    def full(self) -> bool:
        """Whether the context is full."""
        return len(self.transcript.tokens) >= self.context

    def open(self, prompt: Message | str | Sequence[int], *, limit: int) -> Turn:
        """Return the turn of a message, or of a bare prompt: text or token ids. Its answer will use today's adapter.

        limit: the most tokens of the answer. A message's turn lacks the oldest turns if they leave too little room for
        it. Nothing is committed. Raises ContextExceeded, InputError, BudgetExceeded.
        """
        self._answering = self.adapter
        if not isinstance(prompt, Message):
            turn = self.transcript.bare_turn(prompt)
        elif self._when_full is WhenFull.STOP:
            turn = self.transcript.open_turn(prompt)
        else:
            room = min(limit, self.context // LEAST_ROOM)
            turn = self.transcript.fitting_turn(prompt, context=self.context, room=room)
        room = min(limit, 1)
        if len(turn.tokens) + room > self.context:
            tokens = len(turn.tokens)
            remedy = room_for(tokens, context=self.context, longest=self._most)
            raise ContextExceeded.of(f"{tokens} tokens", self.context, remedy=remedy, room=room)
        return turn

    def expected(self, text: str) -> Sequence[int]:
        """Return the tokens of a text that the answer may be, as far as the context goes; none if memory is short."""
        try:
            return self._encoder.encode(text[: PLANNED_BYTES_PER_TOKEN * self.context])
        except (BudgetExceeded, ContextExceeded):
            return ()

    @contextmanager
    def answering(self, turn: Turn, reply: Reply, *, ends: frozenset[int]) -> Iterator[None]:
        """Begin a turn, and record its answer at the end: the text of `reply`, also if it is closed or interrupted."""
        try:
            with self.transcript.answering(turn, lambda: reply.text + reply.rest(), ends=ends):
                self.begin(turn, lambda: reply.text)
                yield
        finally:
            self._narrow()  # another one may have been chosen in between

    @contextmanager
    def unrecorded(self, turn: Turn) -> Iterator[None]:
        """Begin a turn whose answer is not recorded: the messages are those from before it afterwards."""
        before = self.transcript.messages
        try:
            self.begin(turn, str)
            yield
        finally:
            self.transcript.start_over(before)
            self._narrow()

    def begin(self, turn: Turn, said: Callable[[], str]) -> int:
        """Take the turn's tokens, and keep of the KV cache what it shares with them; return how many it lacks.

        said: returns the text of its answer so far.
        """
        if self._choice is not None:
            self._choice.keep(self._answering, self.adapter)
        old, new = self.transcript.tokens, [*turn.tokens, *turn.reply]
        self.reading.begin(old, new, adapter=self._answering, prompt=turn.tokens)
        self.transcript.begin_reply(turn, said=said)
        return len(new) - self.state.length

    def dropped(self, turn: Turn) -> Iterator[Chunk]:
        """Report the turns that were dropped for this one."""
        if turn.dropped:
            event = TurnsDropped(turn.dropped, len(self.transcript.tokens))
            notice(f"{event.notice} of {self.context} tokens")
            yield Chunk("", (), TARGET_SOURCE, event=event)

    def shorter(self, turn: Turn, *, limit: int) -> Turn | None:
        """Return the running turn without the oldest turns, and the tokens of its answer so far.

        None if the context is not full, no turn may be dropped, or the answer has its `limit` of tokens.
        """
        if not self.full or len(self.transcript.reply_tokens) >= limit or self._when_full is WhenFull.STOP:
            return None
        return self.transcript.shorter_turn(turn, context=self.context)

    def scores(
        self, prompt: str | Sequence[int], target: LanguageModel, draw: RowDraw, *, top: int, rows: int
    ) -> Generator[Chunk]:
        """Return the tokens of a bare prompt after each pass, with their log probabilities. As `TargetReading.score`.

        Raises as `open`, and InputError for a `top` out of range.
        """
        from edgedecode.sampling.log_probabilities import check_top_logprobs  # late: few prompts are scored

        check_top_logprobs(top)
        sampler = Sampler(SamplingOptions(), vocabulary_size=target.card.vocabulary_size, row_draw=draw)
        return self._scored(self.open(prompt, limit=0), target, sampler, top=top, rows=rows)

    def _scored(self, turn: Turn, target: LanguageModel, sampler: Sampler, *, top: int, rows: int) -> Generator[Chunk]:
        with self.unrecorded(turn):
            for found in self.reading.score(turn.tokens, target, sampler, top=top, rows=rows):
                yield Chunk("", tuple(each.token for each in found), TARGET_SOURCE, logprobs=found)

    def close(self) -> None:
        """Release everything, even if some of it raises."""
        with ExitStack() as closing:
            for close in (self._encoder.close, self.state.close, self._release_adapters):
                closing.callback(close)

    def _narrow(self) -> None:
        if self._choice is not None:
            self._choice.narrow(self.adapter)

    def _release_adapters(self) -> None:
        if self._choice is not None:
            self._choice.release()


def _template_arguments(shared: Resources, details: SessionDetails) -> Mapping[str, object]:
    """Return the variables of the chat template. Raises InputError."""
    if not (details.template_arguments or details.template_think):
        return {}
    from edgedecode.text.template_switches import template_arguments  # late: it parses the template

    source = shared.tokenizer.chat_template.source
    return template_arguments(source, details.template_arguments, think=details.template_think)
