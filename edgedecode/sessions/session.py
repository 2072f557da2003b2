"""A conversation with a pair: messages in, streamed text out, one answer at a time.

An answer is `stream`, `_prepare`, `_chunks` and `_decoded`; the decode loop below them is decoding/loop.py.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self
from weakref import finalize

from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Outcome, Rule
from edgedecode.drafters.source import DraftSetting
from edgedecode.errors import CapabilityError
from edgedecode.fair_lock import when_free
from edgedecode.memory.process_memory import peak_nbytes, release_pages
from edgedecode.options import SessionOptions, answer_limit, sampling_defaults
from edgedecode.sampling.sampler import Noise, Sampler, answer_seed
from edgedecode.sessions.answer import Answer, Running, Samples
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Completion, Reply, completion_of
from edgedecode.sessions.drafter_choice import check_options, check_samples, most_rows
from edgedecode.sessions.memory_plan import sampling_holder
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.session_drafting import SessionDrafting
from edgedecode.sessions.turns import Turns
from edgedecode.text.messages import Message
from edgedecode.text.transcript import Turn
from edgedecode.user_notices import notice

if TYPE_CHECKING:
    from edgedecode.decoding.constraint import Constraint
    from edgedecode.sampling.log_probabilities import TokenLogprob


class Session:
    """A conversation, created by `Pair.session`. `messages` is the transcript, `tokens` are the tokens the model sees.

    It generates one answer at a time: a new answer, `reset` and `close` stop the running one, from any thread, and wait
    for the end of its round or prefill chunk. Iterating over the stopped answer ends. Sessions of a pair may answer in
    several threads at once; their rounds alternate. Close a session to release its memory.
    `seed` is the last answer's; before the first answer, the first one's. Later answers get seeds derived from the
    given one and their number, or random ones. Any answer is reproduced by a new session with its seed and messages.
    """

    def __init__(self, shared: Resources, options: SessionOptions, *, messages: Sequence[Message] = ()) -> None:
        self._shared, self.options, card = shared, options, shared.target.card
        sampling = options.sampling or sampling_defaults(shared.manifest.generation)
        self.sampling = sampling.for_vocabulary(card.vocabulary_size, shared.tokenizer.ids_containing)
        check_options(options, choice := shared.choice(options), card=card)
        if options.drafter is not None and choice.names:  # raises for an unknown name; other drafters are optional
            shared.drafter_source(options.drafter)
        self.seed, self._answers, self.stats = answer_seed(options.seed, 0), 0, Stats()
        self._noise, self._draft_noise = Noise(self.seed), Noise(self.seed, stream=1)
        self._ends = frozenset[int]() if options.details.ignore_eos else shared.manifest.end_ids
        self._running = Running(shared.turn)
        self._ahead: Answer | None = None  # the last `prepare`
        self._grammar = shared.constraint(options.grammar)
        self._row_draw, self._rows = shared.row_draw(), most_rows(options, choice)
        with ExitStack() as undo:
            self._scratch = shared.budget.reserve(*sampling_holder(card.vocabulary_size, self._row_draw))
            undo.callback(self._scratch.release)
            self._turns = Turns(shared, options, messages=messages, rows=self._rows, tree=choice.branches and card.tree)
            undo.callback(self._turns.close)
            setting = DraftSetting(
                budget=shared.budget,
                sampling=self.sampling,
                vocabulary_size=card.vocabulary_size,
                capacity=self.context,
                ends=self._ends,
                sampled=options.details.rule is Rule.RATIO,
                noise=self._noise,
                row_draw=self._row_draw,
                target_state=self._turns.state,
            )
            self._drafts = SessionDrafting(shared, options, setting, noise=self._draft_noise)
            undo.pop_all()
        shared.draftings.add(self._drafts)
        finalize(self, self._scratch.release)  # for a session that is garbage-collected without being closed

    @property
    def messages(self) -> tuple[Message, ...]:
        """The transcript without dropped turns, including the text so far of a running answer.

        Incomplete characters and possible stop strings are added when the answer ends. An answer that was stopped
        before its first text is left out, with its prompt.
        """
        return self._turns.transcript.heard

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that the model sees: prompt and generated ids."""
        return tuple(self._turns.transcript.tokens)

    @property
    def context(self) -> int:
        """The longest conversation in tokens."""
        return self._turns.context

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
        """Answer a message, yielding text as it is decoded. prompt: a user's text, or a message of any role.

        Closing the iterator stops the answer; leaving it does at the next call. The transcript keeps the text so far.
        A conversation that outgrows the context loses its oldest turns (`SessionDetails.when_full`), before an answer
        or in the middle of it; a chunk's `event` reports that. The text that follows is that of a new session with the
        kept messages. Raises ContextExceeded, before anything changes, if the prompt alone does not fit, or no turn may
        be dropped.
        top_logprobs: give each token's log probability and this many of the likeliest tokens, 0 to 20; None: neither.
        Raises CapabilityError with entropy switching, whose tokens the target does not process.
        """
        message = Message("user", prompt) if isinstance(prompt, str) else prompt
        return self._running.own.run(lambda: self._prepare(message, max_tokens, stop, top_logprobs))

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
        return self._running.own.run(lambda: self._prepare(prompt, max_tokens, stop, top_logprobs))

    def samples(
        self,
        prompt: str | Message | Sequence[int],
        count: int,
        *,
        raw: bool = False,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
    ) -> Samples:
        """Answer a message several times at once. The prompt is processed once, and a pass has a row for each answer.

        The answers' seeds are `seed`, `seed` + 1, ...; each answer is, token for token, that of a new session with its
        seed, until the context is full. The transcript stays as it was: `reset` with an answer goes on from there. raw:
        as `complete`, and so token ids. Raises CapabilityError for engines of chains, switching and the ratio rule.
        """
        asked = Message("user", prompt) if isinstance(prompt, str) and not raw else prompt
        return self._sampled([asked] * count, max_tokens=max_tokens, stop=stop, top=top_logprobs)

    def completions(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        seeds: Sequence[int] | None = None,
        max_tokens: int | None = None,
    ) -> list[Completion]:
        """Continue several texts, or token ids, at once: each as `complete` does in a new session with its seed.

        What they begin with is processed once, and a pass has a row for each. seeds: as those of `samples` by default.
        Raises as `samples`.
        """
        return self._sampled(prompts, seeds, max_tokens=max_tokens).completions()

    def _sampled(
        self,
        prompts: Sequence[Message | str | Sequence[int]],
        seeds: Sequence[int] | None = None,
        *,
        max_tokens: int | None,
        stop: Sequence[str] = (),
        top: int | None = None,
    ) -> Samples:
        """Return the running answers to these prompts."""
        from edgedecode.sessions.samples import new_samples, sampled  # late: one answer needs none

        shared, turns = self._shared, self._turns
        check_samples(len(prompts), self.options, shared.target.card)
        limit = answer_limit(max_tokens, shared.manifest.generation)

        def prepare() -> Samples:
            self._running.end()
            every = [turns.open(prompt, limit=limit) for prompt in prompts]
            first = self._next_seed()
            samples = new_samples(shared, self.options, seeds or range(first, first + len(every)), stop=stop, top=top)
            self.stats = samples[0].stats
            chunks = sampled(shared, turns, every, samples, self._setting, limit=limit, rows=self._rows)
            return self._running.samples(chunks, [each.stats for each in samples])

        return self._running.own.run(prepare)

    def score(self, prompt: str | Sequence[int], *, top_logprobs: int = 0) -> list[TokenLogprob | None]:
        """Return each token's log probability given those before it, None for the first; `tokens` are then the prompt.

        The prompt may fill the context. top_logprobs: as in `stream`. `complete` with the same prompt reuses its KV
        cache. Raises as `complete`, and CapabilityError if another call of this session stops it.
        """

        def prepare() -> Answer:
            self._running.end()
            target, draw = self._shared.target, self._row_draw
            scores = self._turns.scores(prompt, target, draw, top=top_logprobs, rows=self._rows)
            return self._running.run(scores, Stats())

        scoring = self._running.own.run(prepare)
        found = [None, *(each for chunk in scoring for each in chunk.logprobs)]
        if scoring.stopped:
            raise CapabilityError("another call of this session stopped the scoring: score in a session of its own")
        return found

    def collect(self, chunks: Iterator[Chunk]) -> Completion:
        """Collect a stream of this session into a completion, with the statistics of that answer."""
        return completion_of(chunks, chunks.stats if isinstance(chunks, Answer) else self.stats)

    def prepare(self) -> None:
        """Prefill tokens that any next message needs: the last answer without its activated adapter.

        For the time in which a user reads or types; may run in a separate thread. Any other call stops it within a
        pass. Does nothing in the middle of an answer.
        """

        def ahead() -> Iterator[Chunk]:
            self._running.check_open()
            if self._running.busy:
                return iter(())
            chunks = self._turns.reading.read_again(self._turns.transcript.tokens, self._shared.target)
            self._ahead = self._running.run(chunks, Stats())
            return self._ahead

        for _ in self._running.own.run(ahead):
            pass

    def use_adapter(self, name: str | None, *, scale: float = 1.0) -> None:
        """Use one of the pack's adapters from the next message on; None: no adapter. A running answer keeps its own.

        Tokens that another adapter has processed are prefilled again: the latest answer after an activated adapter,
        everything after any other. Raises as `PackAdapters.use`.
        """

        def use() -> None:
            self._running.check_open()
            if self._ahead is not None:
                self._ahead.end()
            answering = self._running.busy
            self._turns.adapter = self._shared.turn.run(
                lambda: self._drafts.load_adapter(self._turns.chosen(name, scale=scale, more=answering))
            )
            if answering:
                notice("the adapter changes with the next message: this answer continues with its own")

        self._running.own.run(use)

    def reset(self, messages: Sequence[Message] = ()) -> None:
        """Start over from these messages; the KV cache of a shared prefix is reused."""

        def start_over() -> None:
            self._running.end()
            self._turns.transcript.start_over(messages)

        self._running.own.run(start_over)

    def stop(self) -> None:
        """Make the running answer, or scoring, end after its pass. From any thread; it does not wait."""
        self._running.stop()

    def close(self) -> None:
        """Stop a running answer, wait until it has ended, and release the memory. Idempotent.

        Called within a round of the same thread (a finalizer, a signal handler, a drafter) it closes after the round.
        """
        self._running.closed = True
        self.stop()
        when_free(lambda: self._running.own.run(self._end))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _prepare(
        self, prompt: Message | str | Sequence[int], max_tokens: int | None, stop: Sequence[str], top: int | None
    ) -> Answer:
        """Stop the running answer and return the next one, with its tokens, seed and statistics. No pass runs yet."""
        limit = answer_limit(max_tokens, self._shared.manifest.generation)
        reply = Reply.begin(self._shared.tokenizer, stop=stop, top_logprobs=top, options=self.options)
        self._running.end()
        turn = self._turns.open(prompt, limit=limit)
        self._begin_noise(self._next_seed())
        if self._grammar is not None:
            self._grammar.begin()
        self.stats = Stats(seed=self.seed)
        return self._running.run(self._chunks(turn, reply, limit=limit), self.stats)

    def _next_seed(self) -> int:
        self.seed = answer_seed(self.options.seed, self._answers) if self._answers else self.seed
        self._answers += 1
        return self.seed

    def _chunks(self, turn: Turn, reply: Reply, *, limit: int) -> Generator[Chunk | None]:
        """Yield an answer's chunks, and None where other threads may use the models.

        If the context becomes full, the answer goes on without the oldest turns.
        """
        turns, restarts = self._turns, 0
        with turns.answering(turn, reply, ends=self._ends):
            while True:
                self.stats.dropped_turns += turn.dropped
                yield from turns.dropped(turn)
                ended = yield from self._decoded(reply, limit=limit - len(turn.reply))
                if ended or (shorter := turns.shorter(turn, limit=limit)) is None:
                    break
                turn, restarts = shorter, restarts + 1
                self.stats.reread_tokens += turns.begin(turn, lambda: reply.text)
                self._begin_noise(answer_seed(self.seed, -restarts))  # at these positions the seed's noise was used
            rest = reply.rest()
            self._note_memory()
        stopped = ended or bool(reply.matched)
        self.stats.stop_string, self.stats.context_full = reply.matched, not stopped and turns.full
        yield Chunk(rest, (), TARGET_SOURCE, FinishReason.STOP if stopped else FinishReason.LENGTH)

    def _decoded(self, reply: Reply, *, limit: int) -> Generator[Chunk | None, None, bool]:
        """Decode after the conversation's tokens; return whether the reply ended by itself, not at a limit."""
        shared, turns, stats = self._shared, self._turns, self.stats
        tokens = turns.transcript.tokens
        shared.mind_memory()
        with self._drafts.answering(stats, turns.reading.span.use, turns.reading.prompt) as drafting:
            self._note_memory()
            setting = replace(
                self._setting(self._noise, self._grammar), drafting=drafting, switching=self._drafts.switching
            )
            target, state = shared.target, turns.state
            for verdict in decode(target, state, tokens=tokens, max_tokens=limit, setting=setting, stats=stats):
                if verdict is None:
                    yield None
                    continue
                yield from reply.said(verdict, tokens, stats)
                shared.mind_memory()
                if reply.matched or verdict.outcome is Outcome.ENDED:
                    return True
        return False

    def _setting(self, noise: Noise, constraint: Constraint | None) -> DecodeSetting:
        """Return the parts of an answer that decodes without drafts."""
        span, size = self._turns.reading.span, self._shared.target.card.vocabulary_size
        return DecodeSetting(
            adapter=span.use,
            adapter_from=span.start,
            sampler=Sampler(self.sampling, vocabulary_size=size, row_draw=self._row_draw),
            noise=noise,
            rule=self.options.details.rule,
            ends=self._ends,
            clock=self._shared.clock,
            constraint=constraint,
        )

    def _begin_noise(self, seed: int) -> None:
        for noise in (self._noise, self._draft_noise):
            noise.begin(seed)

    def _note_memory(self) -> None:
        self.stats.planned_nbytes, self.stats.peak_nbytes = self._shared.budget.used_nbytes, peak_nbytes()

    def _end(self) -> None:
        """End a running answer and release everything, as part of `close`, even if some of it raises."""
        with ExitStack() as closing:
            closing.callback(self._shared.turn.run, self._release)
            if (answer := self._running.answer) is not None:
                answer.end()

    def _release(self) -> None:
        with ExitStack() as closing:
            # Last: the C library would keep the freed keys and values, which a later session may not be able to reuse.
            for close in (release_pages, self._scratch.release, self._turns.close):
                closing.callback(close)
            self._grammar = None  # its memory is leased for as long as it exists
            self._drafts.close()
