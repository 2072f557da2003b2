"""One conversation with a pair: turns in, streamed text out. The decode loop is decoding/loop.py."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from edgedecode.decoding.stats import Stats
from edgedecode.options import WhenFull, answer_limit
from edgedecode.sampling.sampler import answer_seed
from edgedecode.sessions.answer import Answer
from edgedecode.sessions.bare_session import BareSession
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Completion, Reply, TurnsDropped
from edgedecode.text.messages import Message
from edgedecode.text.transcript import Turn
from edgedecode.user_notices import notice

LEAST_ROOM = 8
"""Turns are dropped if an answer would have less than 1/LEAST_ROOM of the context."""


class Session(BareSession):
    """A conversation, created by `Pair.session`. `messages` is the transcript, `tokens` are the tokens the model sees.

    It generates one answer at a time: a new answer, `reset` and `close` stop the running one, from any thread, and wait
    for the end of its round or prefill chunk. Iterating over the stopped answer ends. Sessions of a pair may answer in
    several threads at once; their rounds alternate. Close a session to release its memory.
    `seed` is the last answer's; before the first answer, the first one's. Later answers get seeds derived from the
    given one and their number, or random ones. Any answer is reproduced by a new session with its seed and messages.
    """

    _ahead: Answer | None = None
    """The last `prepare`."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The transcript without dropped turns, including the text so far of a running answer.

        Incomplete characters and possible stop strings are added when the answer ends. An answer that was stopped
        before its first text is left out, with its prompt.
        """
        return self._transcript.heard

    def stream(
        self,
        prompt: str | Message,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
    ) -> Answer:
        """Answer a message, yielding text as it is decoded. prompt: a user's text, or a message of any role.

        Closing the iterator stops the answer; leaving it does at the next call. The transcript keeps the text so far.
        A conversation that outgrows the context loses its oldest turns (`SessionOptions.when_full`), before an answer
        or in the middle of it; a chunk's `event` reports that. The text that follows is that of a new session with the
        kept messages. Raises ContextExceeded, before anything changes, if the prompt alone does not fit, or no turn may
        be dropped.
        top_logprobs: give each token's log probability and this many of the likeliest tokens, 0 to 20; None: neither.
        Raises CapabilityError with entropy switching, whose tokens the target does not process.
        """
        limit, reply = answer_limit(max_tokens, self._shared.manifest.generation), self._reply(stop, top_logprobs)
        message = Message("user", prompt) if isinstance(prompt, str) else prompt
        return self._own.run(lambda: self._stream(message, limit=limit, reply=reply))

    def generate(
        self,
        prompt: str | Message,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
    ) -> Completion:
        """Answer a message, as `stream`, and return the complete reply."""
        return self.collect(self.stream(prompt, max_tokens=max_tokens, stop=stop, top_logprobs=top_logprobs))

    def prepare(self) -> None:
        """Prefill tokens that any next message needs: the last answer without its activated adapter.

        For the time in which a user reads or types; may run in a separate thread. Any other call stops it within a
        pass. Does nothing in the middle of an answer.
        """
        for _ in self._own.run(self._preparing):
            pass

    def use_adapter(self, name: str | None, *, scale: float = 1.0) -> None:
        """Use one of the pack's adapters from the next message on; None: no adapter. A running answer keeps its own.

        Tokens that another adapter has processed are prefilled again: the latest answer after an activated adapter,
        everything after any other. Raises as `PackAdapters.use`.
        """
        self._own.run(lambda: self._use_adapter(name, scale))

    def reset(self, messages: Sequence[Message] = ()) -> None:
        """Start over from these messages; the KV cache of a shared prefix is reused."""
        self._own.run(lambda: self._start_over(messages))

    def _stream(self, message: Message, *, limit: int, reply: Reply) -> Answer:
        self._stop_running()
        turn = self._fitting_turn(message, limit=limit)
        self._reading.check_fits(turn.tokens, self.context, card=self._shared.target.card)
        return self._start(lambda pause: self._turn(turn, limit=limit, reply=reply, pause=pause))

    def _start_over(self, messages: Sequence[Message]) -> None:
        self._stop_running()
        self._transcript.start_over(messages)

    def _preparing(self) -> Iterator[Chunk]:
        self._check_open()
        if self._running is not None and not self._running.ended:
            return iter(())

        def read_again(pause: Callable[[], None]) -> Generator[Chunk]:
            self._reading.read_again(self._transcript.tokens, target=self._shared.target, pause=pause)
            yield from ()

        self._running = self._ahead = Answer(read_again, stats=Stats(), turn=self._shared.turn, own=self._own)
        return self._ahead

    def _use_adapter(self, name: str | None, scale: float) -> None:
        self._check_open()
        if self._ahead is not None:
            self._ahead.end()
        answering = self._running is not None and not self._running.ended
        self._reading.adapter = self._shared.turn.run(
            lambda: self._drafts.load_adapter(self._adapters.choose(name, scale=scale, more=answering))
        )
        if answering:
            notice("the adapter changes with the next message: this answer continues with its own")

    def _turn(self, turn: Turn, *, limit: int, reply: Reply, pause: Callable[[], None]) -> Generator[Chunk]:
        transcript, restarts = self._transcript, 0
        with transcript.answering(lambda: reply.text + reply.rest(), ends=self._ends):
            self._begin(turn, reply)
            yield from self._dropped(turn)
            ended = yield from self._chunks(reply, limit=limit, pause=pause)
            while not ended and (shorter := self._shorter_turn(limit=limit)) is not None:
                self._begin(shorter, reply, generated=transcript.reply_tokens)
                restarts += 1  # a new seed: the answer continues at positions whose noise was used
                self._begin_noise(answer_seed(self.seed, -restarts))
                self.stats.reread_tokens += len(transcript.tokens) - self._state.length
                yield from self._dropped(shorter)
                ended = yield from self._chunks(reply, limit=limit - len(transcript.reply_tokens), pause=pause)
            yield self._last(reply, ended=ended)

    def _fitting_turn(self, message: Message, *, limit: int) -> Turn:
        """Return the next turn, without the oldest turns if they leave too little room for an answer."""
        if self.options.when_full is WhenFull.STOP:
            return self._transcript.open_turn(message)
        return self._transcript.fitting_turn(message, context=self.context, room=min(limit, self.context // LEAST_ROOM))

    def _shorter_turn(self, *, limit: int) -> Turn | None:
        """Return the running turn without the oldest turns; None if the context is not full, or no turn is left."""
        transcript = self._transcript
        full = len(transcript.tokens) >= self.context and len(transcript.reply_tokens) < limit
        return transcript.shorter_turn(self.context) if full and self.options.when_full is not WhenFull.STOP else None

    def _begin(self, turn: Turn, reply: Reply, *, generated: Sequence[int] = ()) -> None:
        """Set the tokens and the KV cache up for a turn. generated: tokens of its answer so far."""
        self._adapters.keep(adapter := self._reading.answering, self._reading.adapter)
        old, new = self._transcript.tokens, [*turn.tokens, *generated]
        self._reading.begin(old, new, adapter=adapter, prompt=turn.tokens)
        self._transcript.begin_reply(turn, said=lambda: reply.text, reply=generated)

    def _dropped(self, turn: Turn) -> Iterator[Chunk]:
        """Count and report dropped turns."""
        if turn.dropped:
            self.stats.dropped_turns += turn.dropped
            event = TurnsDropped(turn.dropped, len(self._transcript.tokens))
            notice(f"{event.notice} of {self.context} tokens")
            yield Chunk("", (), TARGET_SOURCE, event=event)
