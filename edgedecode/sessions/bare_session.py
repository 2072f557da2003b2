"""Continue bare prompts with a pair, or score them: what a session is without its conversation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import Self
from weakref import finalize

from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Outcome
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.budget import Budget
from edgedecode.memory.process_memory import peak_nbytes, release_pages
from edgedecode.options import SessionOptions, answer_limit, planned_context, sampling_defaults
from edgedecode.sampling.log_probabilities import TokenLogprob, check_top_logprobs
from edgedecode.sampling.sampler import Noise, Sampler, answer_seed
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.answer import Answer
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Completion, Reply, completion_of
from edgedecode.sessions.drafter_choice import check_options, most_rows
from edgedecode.sessions.memory_plan import sampling_holder
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.session_drafting import SessionDrafting, draft_setting
from edgedecode.sessions.target_reading import TargetReading
from edgedecode.text.encoder import Encoder
from edgedecode.text.messages import Message
from edgedecode.text.template_switches import template_arguments
from edgedecode.text.transcript import Transcript
from edgedecode.turns import FairLock, when_free

_Chunks = Callable[[Callable[[], None]], Generator[Chunk]]
"""Yields chunks, and calls its argument where other threads may use the models (see `Answer`)."""


class BareSession:
    """Opens and releases what answers need, and generates one answer at a time; `Session` adds the conversation.

    Lock order: `_own`, which is held while an answer is started or stopped, then the pair's.
    """

    def __init__(self, shared: Resources, options: SessionOptions, *, messages: Sequence[Message] = ()) -> None:
        self._shared = shared
        self.sampling = options.sampling or sampling_defaults(shared.manifest.generation)
        self.seed, self._answers, self.stats = answer_seed(options.seed, 0), 0, Stats()
        self._ends = frozenset[int]() if options.ignore_eos else shared.manifest.end_ids
        self._noise, self._draft_noise = Noise(self.seed), Noise(self.seed, stream=1)
        self._row_draw, card = shared.row_draw(), shared.target.card
        context = planned_context(options.context, card.context)
        self.sampling.check_ids(card.vocabulary_size)
        check_options(options, choice := shared.choice(options), card=card)
        if options.drafter is not None and choice.names:  # raises for an unknown name; other drafters are optional
            shared.drafter_source(options.drafter)
        self._running: Answer | None = None
        self._own = FairLock()
        self._closed = False
        self._grammar = shared.constraint(options.grammar)
        self._adapters = shared.adapters.choice()
        with ExitStack() as undo:
            undo.callback(self._adapters.release)
            adapter = self._adapters.choose(options.adapter, scale=options.adapter_scale)
            self._rows, size = most_rows(options, choice), card.vocabulary_size
            self._scratch = undo.enter_context(shared.budget.reserve(*sampling_holder(size, self._row_draw)))
            source = shared.tokenizer.chat_template.source
            self._encoder = Encoder(
                shared.tokenizer,
                capacity=context,
                longest=card.context,
                budget=shared.budget,
                arguments=template_arguments(source, options.template_arguments, think=options.think),
                in_turn=shared.turn.run,
            )
            undo.callback(self._encoder.close)
            self._transcript = Transcript(shared.tokenizer, messages, source=self._encoder)
            self._state = shared.target.new_state(context, rows=self._rows, tree=choice.trees)
            undo.callback(self._state.close)
            self._reading = TargetReading(self._state, adapter=adapter)
            self.options = options
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
    def tokens(self) -> tuple[int, ...]:
        """The tokens that the model sees: prompt and generated ids."""
        return tuple(self._transcript.tokens)

    @property
    def context(self) -> int:
        """The longest conversation in tokens."""
        return self._state.capacity

    @property
    def budget(self) -> Budget:
        """The pair's budget; its `table` lists the memory by holder."""
        return self._shared.budget

    @property
    def drafter_name(self) -> str:
        """The drafters in use, joined by "+"; "none" for decoding without drafts."""
        return self._drafts.name

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
    ) -> Answer:
        """Continue a text, or token ids, without chat template and transcript. Options as `stream`.

        Raises InputError for ids outside the vocabulary.
        """
        limit, reply = answer_limit(max_tokens, self._shared.manifest.generation), self._reply(stop, top_logprobs)
        return self._own.run(lambda: self._complete(prompt, limit=limit, reply=reply))

    def score(self, prompt: str | Sequence[int], *, top_logprobs: int = 0) -> list[TokenLogprob | None]:
        """Return each token's log probability given those before it, None for the first; `tokens` are then the prompt.

        The prompt may fill the context. top_logprobs: as in `stream`. `complete` with the same prompt reuses its KV
        cache. Raises as `complete`, and CapabilityError if another call of this session stops it.
        """
        check_top_logprobs(top_logprobs)
        scoring = self._own.run(lambda: self._score(prompt, top=top_logprobs))
        found = [None, *(each for chunk in scoring for each in chunk.logprobs)]
        if scoring.stopped:
            raise CapabilityError("another call of this session stopped the scoring: score in a session of its own")
        return found

    def collect(self, chunks: Iterator[Chunk]) -> Completion:
        """Collect a stream of this session into a completion, with the statistics of that answer."""
        return completion_of(chunks, chunks.stats if isinstance(chunks, Answer) else self.stats)

    def stop(self) -> None:
        """Make the running answer, or scoring, end after its pass. From any thread; it does not wait."""
        if (running := self._running) is not None:
            running.stop()

    def close(self) -> None:
        """Stop a running answer, wait until it has ended, and release the memory. Idempotent.

        Called within a round of the same thread (a finalizer, a signal handler, a drafter) it closes after the round.
        """
        self._closed = True
        self.stop()
        when_free(lambda: self._own.run(self._end))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _reply(self, stop: Sequence[str], top_logprobs: int | None) -> Reply:
        return Reply.begin(self._shared.tokenizer, stop=stop, top_logprobs=top_logprobs, options=self.options)

    def _complete(self, prompt: str | Sequence[int], *, limit: int, reply: Reply) -> Answer:
        self._stop_running()
        tokens = self._transcript.bare(prompt)
        self._reading.check_fits(tokens, self.context, card=self._shared.target.card)
        return self._start(lambda pause: self._bare(tokens, limit=limit, reply=reply, pause=pause))

    def _score(self, prompt: str | Sequence[int], *, top: int) -> Answer:
        self._stop_running()
        tokens = self._transcript.bare(prompt)
        self._reading.check_fits(tokens, self.context, card=self._shared.target.card, room=0)

        def scored(pause: Callable[[], None]) -> Generator[Chunk]:
            self._begin_bare(tokens)
            target = self._shared.target
            sampler = Sampler(SamplingOptions(), vocabulary_size=target.card.vocabulary_size, row_draw=self._row_draw)
            for found in self._reading.score(tokens, target, sampler, top=top, rows=self._rows):
                yield Chunk("", tuple(each.token for each in found), TARGET_SOURCE, logprobs=found)

        return self._run(scored, Stats())

    def _start(self, chunks: _Chunks) -> Answer:
        """Make these chunks the running answer, with a new seed and new statistics."""
        if self._answers:
            self.seed = answer_seed(self.options.seed, self._answers)
        self._answers += 1
        self._begin_noise(self.seed)
        if self._grammar is not None:
            self._grammar.begin()
        self.stats = Stats(seed=self.seed)
        return self._run(chunks, self.stats)

    def _run(self, chunks: _Chunks, stats: Stats) -> Answer:
        """Make these chunks the running answer, with the adapter of now."""
        self._reading.answering = self._reading.adapter

        def answering(pause: Callable[[], None]) -> Generator[Chunk]:
            try:
                yield from chunks(pause)
            finally:
                self._adapters.narrow(self._reading.adapter)  # another one may have been chosen in between

        self._running = answer = Answer(answering, stats=stats, turn=self._shared.turn, own=self._own)
        if self._closed:  # while the prompt was encoded
            answer.stop()
        return answer

    def _stop_running(self) -> None:
        """End the running answer, if any. Raises InputError if the session is closed."""
        if self._running is not None:
            self._running.end()
        self._running = None
        self._check_open()

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

    def _bare(self, tokens: list[int], *, limit: int, reply: Reply, pause: Callable[[], None]) -> Generator[Chunk]:
        self._begin_bare(tokens)
        ended = yield from self._chunks(reply, limit=limit, pause=pause)
        yield self._last(reply, ended=ended)

    def _begin_bare(self, tokens: list[int]) -> None:
        """Set the tokens and the KV cache up for a prompt without chat template."""
        self._adapters.keep(self._reading.answering, self._reading.adapter)
        self._reading.begin(self._transcript.tokens, tokens, adapter=self._reading.answering)
        self._transcript.forget_rendering()
        self._transcript.tokens = tokens

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
                constraint=self._grammar,
                pause=pause,
            )
            for verdict in decode(target, self._state, tokens=tokens, max_tokens=limit, setting=setting, stats=stats):
                yield from reply.said(verdict, tokens, stats)
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

    def _begin_noise(self, seed: int) -> None:
        self._noise.begin(seed)
        self._draft_noise.begin(seed)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this session is closed: open another with Pair.session")
