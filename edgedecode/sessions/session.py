"""One conversation with a pair: turns in, streamed text out. The decode loop is decoding/loop.py."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter
from weakref import finalize

from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.padding import next_width, usable_context
from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Outcome
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.budget import Budget
from edgedecode.memory.process_memory import peak_nbytes, release_pages
from edgedecode.options import SessionOptions, WhenFull, answer_limit, planned_context, sampling_defaults
from edgedecode.sampling.sampler import Noise, Sampler, answer_seed
from edgedecode.sessions.answer import Answer
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Completion, Reply, TurnsDropped, completion_of
from edgedecode.sessions.drafter_choice import check_options, most_rows
from edgedecode.sessions.memory_plan import sampling_holder
from edgedecode.sessions.reproducible import fitting_widths, limited_drafts, session_widths
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.session_drafting import SessionDrafting, draft_setting, plan_state
from edgedecode.sessions.target_reading import TargetReading
from edgedecode.text.encoder import Encoder
from edgedecode.text.messages import Message, answered_message
from edgedecode.text.transcript import Transcript, Turn
from edgedecode.turns import FairLock, when_free
from edgedecode.user_notices import notice

__all__ = ["Session"]

LEAST_ROOM = 8
"""Turns are dropped if an answer would have less than 1/LEAST_ROOM of the context."""


class Session:
    """A conversation, created by `Pair.session`. `messages` is the transcript, `tokens` are the tokens the model sees.

    It generates one answer at a time: a new answer, `reset` and `close` stop the running one, from any thread, and wait
    for the end of its round or prefill chunk. Iterating over the stopped answer ends. Sessions of a pair may answer in
    several threads at once; their rounds alternate. Close a session to release its memory.
    `seed` is the last answer's; before the first answer, the first one's. Later answers get seeds derived from the
    given one and their number, or random ones. Any answer is reproduced by a new session with its seed and messages.
    """

    def __init__(self, shared: Resources, options: SessionOptions, *, messages: Sequence[Message] = ()) -> None:
        self._shared = shared
        self.sampling = options.sampling or sampling_defaults(shared.manifest.generation)
        self.seed, self._answers, self.stats = answer_seed(options.seed, 0), 0, Stats()
        self._ends = frozenset[int]() if options.ignore_eos else shared.manifest.end_ids
        self._noise, self._draft_noise = Noise(self.seed), Noise(self.seed, stream=1)
        self._row_draw, card = shared.row_draw(), shared.target.card
        context = planned_context(options.context, card.context)
        check_options(options, choice := shared.choice(options), card=card)
        if options.drafter is not None and choice.names:  # raises for an unknown name; other drafters are optional
            shared.drafter_source(options.drafter)
        self._running: Answer | None = None
        self._ahead: Answer | None = None  # the last `prepare`
        self._own = FairLock()
        """Held while an answer is started or stopped. Lock order: this lock first, then the pair's."""
        self._closed = False
        self._grammar = shared.constraint(options.grammar)
        self._adapters = shared.adapters.choice()
        with ExitStack() as undo:
            undo.callback(self._adapters.release)
            adapter = self._adapters.choose(options.adapter, scale=options.adapter_scale)
            widths = session_widths(shared, options, adapter)
            options = limited_drafts(options, widths, draft_max=choice.draft_max)
            rows = most_rows(options, shared.choice(options))
            rows = next_width(widths.drafts, rows, room=context) or rows
            size = card.vocabulary_size
            self._scratch = undo.enter_context(shared.budget.reserve(*sampling_holder(size, self._row_draw)))
            self._encoder = Encoder(
                shared.tokenizer, capacity=context, longest=card.context, budget=shared.budget, in_turn=shared.turn.run
            )
            undo.callback(self._encoder.close)
            self._transcript = Transcript(shared.tokenizer, messages, source=self._encoder)
            self._state, options = plan_state(shared, options, context, rows=rows)
            undo.callback(self._state.close)
            self._reading = TargetReading(self._state, adapter=adapter, shifts=options.when_full is WhenFull.SHIFT)
            self.options = options
            self._widths = fitting_widths(widths, self._state, rows=rows)
            setting = draft_setting(
                shared,
                options,
                sampling=self.sampling,
                ends=self._ends,
                noise=self._noise,
                capacity=self._state.capacity,
                row_draw=self._row_draw,
            )
            self._drafts = SessionDrafting(shared, options, setting, noise=self._draft_noise)
            undo.pop_all()
        shared.draftings.add(self._drafts)
        for release in (self._scratch.release, self._encoder.close, self._adapters.release):
            finalize(self, release)  # for a session that is garbage-collected without being closed

    @property
    def messages(self) -> tuple[Message, ...]:
        """The transcript without dropped turns, including the text so far of a running answer.

        Incomplete characters and possible stop strings are added when the answer ends. An answer that was stopped
        before its first text is left out, with its prompt.
        """
        return self._transcript.heard

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that the model sees: prompt and generated ids."""
        return tuple(self._transcript.tokens)

    @property
    def context(self) -> int:
        """The longest conversation in tokens."""
        return usable_context(self._state.capacity, self._widths)

    @property
    def budget(self) -> Budget:
        """The pair's budget; its `table` lists the memory by holder."""
        return self._shared.budget

    @property
    def drafter_name(self) -> str:
        """The drafters in use, joined by "+"; "none" for decoding without drafts."""
        return self._drafts.name

    def stream(
        self,
        prompt: str | Message,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
    ) -> Answer:
        """Answer a message, yielding text as it is decoded. prompt: a user's text, or a user's or tool's message.

        Closing the iterator stops the answer; leaving it does at the next call. The transcript keeps the text so far.
        A conversation that outgrows the context loses its oldest turns (`SessionOptions.when_full`), before an answer
        or in the middle of it; a chunk's `event` reports that. Except with `WhenFull.SHIFT`, the text that follows is
        that of a new session with the kept messages. Raises ContextExceeded, before anything changes, if the prompt
        alone does not fit, or no turn may be dropped.
        top_logprobs: give each token's log probability and this many of the likeliest tokens, 0 to 20; None: neither.
        Raises CapabilityError with entropy switching, whose tokens the target does not process.
        """
        limit, reply = answer_limit(max_tokens, self._shared.manifest.generation), self._reply(stop, top_logprobs)
        return self._own.run(lambda: self._stream(answered_message(prompt), limit=limit, reply=reply))

    def complete(
        self, text: str, *, max_tokens: int | None = None, stop: Sequence[str] = (), top_logprobs: int | None = None
    ) -> Answer:
        """Continue a text without chat template and transcript, yielding text as it is decoded. Options as `stream`."""
        limit, reply = answer_limit(max_tokens, self._shared.manifest.generation), self._reply(stop, top_logprobs)
        return self._own.run(lambda: self._complete(text, limit=limit, reply=reply))

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

    def collect(self, chunks: Iterator[Chunk]) -> Completion:
        """Collect a stream of this session into a completion, with the statistics of that answer."""
        return completion_of(chunks, chunks.stats if isinstance(chunks, Answer) else self.stats)

    def prepare(self) -> None:
        """Prefill tokens that any next message needs: the last answer without its activated adapter.

        For the time in which a user reads or types; may run in a separate thread. Any other call stops it within a
        pass. Does nothing in the middle of an answer, and in a reproducible session.
        """
        for _ in self._own.run(self._preparing):
            pass

    def use_adapter(self, name: str | None, *, scale: float = 1.0) -> None:
        """Use one of the pack's adapters from the next message on; None: no adapter. A running answer keeps its own.

        Tokens that another adapter has processed are prefilled again: the latest answer after an activated adapter,
        everything after any other. Raises as `PackAdapters.use`, and CapabilityError for a reproducible session.
        """
        self._own.run(lambda: self._use_adapter(name, scale))

    def reset(self, messages: Sequence[Message] = ()) -> None:
        """Start over from these messages; the KV cache of a shared prefix is reused."""
        self._own.run(lambda: self._start_over(messages))

    def close(self) -> None:
        """Stop a running answer, wait until it has ended, and release the memory. Idempotent.

        Called within a round of the same thread (a finalizer, a signal handler, a drafter) it closes after the round.
        """
        self._closed = True
        if (running := self._running) is not None:
            running.stop()
        when_free(lambda: self._own.run(self._end))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _reply(self, stop: Sequence[str], top_logprobs: int | None) -> Reply:
        return Reply.begin(self._shared.tokenizer, stop=stop, top_logprobs=top_logprobs, options=self.options)

    def _stream(self, message: Message, *, limit: int, reply: Reply) -> Answer:
        self._stop_running()
        turn = self._fitting_turn(message, limit=limit)
        self._reading.check_fits(turn.tokens, self.context, card=self._shared.target.card)
        return self._start(lambda pause: self._turn(turn, limit=limit, reply=reply, pause=pause))

    def _complete(self, text: str, *, limit: int, reply: Reply) -> Answer:
        self._stop_running()
        tokens = self._transcript.bare(text)
        self._reading.check_fits(tokens, self.context, card=self._shared.target.card)
        return self._start(lambda pause: self._bare(tokens, limit=limit, reply=reply, pause=pause))

    def _start(self, chunks: Callable[[Callable[[], None]], Generator[Chunk]]) -> Answer:
        """Make these chunks the running answer, with a new seed and new statistics."""
        if self._answers:
            self.seed = answer_seed(self.options.seed, self._answers)
        self._answers += 1
        self._begin_noise(self.seed)
        self.stats = Stats(seed=self.seed)
        self._reading.answering = self._reading.adapter
        if self._grammar is not None:
            self._grammar.begin()

        def answering(pause: Callable[[], None]) -> Generator[Chunk]:
            try:
                yield from chunks(pause)
            finally:
                self._adapters.narrow(self._reading.adapter)  # another one may have been chosen in between

        self._running = answer = Answer(answering, stats=self.stats, turn=self._shared.turn, own=self._own)
        if self._closed:  # while the prompt was encoded
            answer.stop()
        return answer

    def _stop_running(self) -> None:
        """End the running answer, if any. Raises InputError if the session is closed."""
        if self._running is not None:
            self._running.end()
        self._running = None
        self._check_open()

    def _start_over(self, messages: Sequence[Message]) -> None:
        self._stop_running()
        self._transcript.start_over(messages)

    def _preparing(self) -> Iterator[Chunk]:
        self._check_open()
        if self._widths or (self._running is not None and not self._running.ended):
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
        if self._widths:
            raise CapabilityError("a reproducible session keeps its adapter: open another session for another adapter")
        answering = self._running is not None and not self._running.ended
        self._reading.adapter = self._shared.turn.run(
            lambda: self._drafts.load_adapter(self._adapters.choose(name, scale=scale, more=answering))
        )
        if answering:
            notice("the adapter changes with the next message: this answer continues with its own")

    def _end(self) -> None:
        """End a running answer and release everything, as part of `close`."""
        with ExitStack() as closing:
            closing.callback(self._shared.turn.run, self._release)
            if self._running is not None:
                self._running.end()

    def _release(self) -> None:
        """Release everything, even if some of it raises."""
        with ExitStack() as closing:
            # Last: the C library would keep the freed keys and values, which a later session may not be able to reuse.
            for close in (release_pages, self._encoder.close, self._scratch.release, self._state.close):
                closing.callback(close)
            self._grammar = None  # its memory is leased for as long as it exists
            self._adapters.release()
            self._drafts.close()

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

    def _bare(self, tokens: list[int], *, limit: int, reply: Reply, pause: Callable[[], None]) -> Generator[Chunk]:
        self._adapters.keep(self._reading.answering, self._reading.adapter)
        self._reading.begin(self._transcript.tokens, tokens, adapter=self._reading.answering)
        self._transcript.forget_rendering()
        self._transcript.tokens = tokens
        ended = yield from self._chunks(reply, limit=limit, pause=pause)
        yield self._last(reply, ended=ended)

    def _chunks(self, reply: Reply, *, limit: int, pause: Callable[[], None]) -> Generator[Chunk, None, bool]:
        """Decode after the transcript's tokens until the reply ends by itself (True), or a limit is reached (False)."""
        stats, tokens = self.stats, self._transcript.tokens
        self._shared.mind_memory()
        target, span = self._shared.target, self._reading.span
        with self._drafts.answering(stats, span.use, self._reading.prompt) as drafting:
            stats.planned_nbytes, stats.peak_nbytes = self._shared.budget.used_nbytes, peak_nbytes()
            setting = DecodeSetting(
                adapter=span.use,
                adapter_from=span.start,
                sampler=Sampler(self.sampling, vocabulary_size=target.card.vocabulary_size, row_draw=self._row_draw),
                noise=self._noise,
                drafting=drafting,
                switching=self._drafts.switching,
                rule=self.options.rule,
                ends=self._ends,
                widths=self._widths,
                constraint=self._grammar,
                pause=pause,
            )
            for verdict in decode(target, self._state, tokens=tokens, max_tokens=limit, setting=setting, stats=stats):
                started = perf_counter()
                chunks = reply.chunks(verdict)
                surplus = len(verdict.tokens) - sum(len(chunk.tokens) for chunk in chunks)  # tokens after a stop string
                del tokens[len(tokens) - surplus :]
                stats.discard(verdict, surplus)
                if stats.rounds > 1:
                    stats.spend_host(perf_counter() - started)
                yield from chunks
                self._shared.mind_memory()
                if reply.stops.matched is not None or verdict.outcome is Outcome.ENDED:
                    return True
        return False

    def _last(self, reply: Reply, *, ended: bool) -> Chunk:
        """Return the last chunk: the text held back, and why the answer ended."""
        stats, rest = self.stats, reply.rest()
        stats.planned_nbytes, stats.peak_nbytes = self._shared.budget.used_nbytes, peak_nbytes()
        stopped = ended or reply.stops.matched is not None
        stats.context_full = not stopped and len(self._transcript.tokens) >= self.context
        return Chunk(rest, (), TARGET_SOURCE, FinishReason.STOP if stopped else FinishReason.LENGTH)

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
        moved = self._reading.begin(old, new, adapter=adapter, prompt=turn.tokens, dropped=turn.dropped)
        self.stats.shifted_tokens += moved
        self._transcript.begin_reply(turn, said=lambda: reply.text, reply=generated)

    def _begin_noise(self, seed: int) -> None:
        self._noise.begin(seed)
        self._draft_noise.begin(seed)

    def _dropped(self, turn: Turn) -> Iterator[Chunk]:
        """Count and report dropped turns."""
        if turn.dropped:
            self.stats.dropped_turns += turn.dropped
            event = TurnsDropped(turn.dropped, len(self._transcript.tokens))
            notice(f"{event.notice} of {self.context} tokens")
            yield Chunk("", (), TARGET_SOURCE, event=event)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this session is closed: open another with Pair.session")
