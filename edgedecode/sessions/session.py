"""A conversation with a pair: messages in, streamed text out, one answer at a time.

An answer is `stream`, `_prepare`, and `_chunks` and `_decoded` in session_decoding.py; below them is decoding/loop.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

from edgedecode.decoding.stats import Stats
from edgedecode.errors import CapabilityError, InputError
from edgedecode.fair_lock import when_free
from edgedecode.options import SessionOptions, answer_limit
from edgedecode.sampling.sampler import answer_seed
from edgedecode.sessions.answer import Answer, Running, Samples
from edgedecode.sessions.chunks import Chunk, Completion, Reply, completion_of
from edgedecode.sessions.drafter_choice import check_samples
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.session_decoding import SessionDecoding
from edgedecode.text.messages import Message
from edgedecode.user_notices import notice

if TYPE_CHECKING:
    from edgedecode.sampling.log_probabilities import TokenLogprob
    from edgedecode.sessions.scored import Scored
    from edgedecode.structured.given import Given


class Session:
    """A conversation, created by `Pair.session`. `messages` is the transcript, `tokens` are the tokens the model sees.

    It generates one answer at a time: a new answer, `reset` and `close` stop the running one, from any thread, and wait
    for the end of its round or prefill chunk. Iterating over the stopped answer ends. Sessions of a pair may answer in
    several threads at once; their rounds alternate. Close a session to release its memory.
    `seed` is the last answer's; before the first answer, the first one's. Later answers get seeds derived from the
    given one and their number, or random ones. Any answer is reproduced by a new session with its seed and messages.
    """

    def __init__(self, shared: Resources, options: SessionOptions, *, messages: Sequence[Message] = ()) -> None:
        self._shared, self.options = shared, options
        self.seed, self._answers, self.stats = answer_seed(options.seed, 0), 0, Stats()
        self._running = Running(shared.turn)
        self._ahead: Answer | None = None  # the last `prepare`
        self._decoding = SessionDecoding(shared, options, messages=messages, seed=self.seed)
        self._turns, self._drafts, self.sampling = self._decoding.turns, self._decoding.drafts, self._decoding.sampling

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
        constraint: Given | None = None,
        expected: str | None = None,
    ) -> Answer:
        """Answer a message, yielding text as it is decoded. prompt: a user's text, or a message of any role.

        Closing the iterator stops the answer; leaving it does at the next call. The transcript keeps the text so far.
        A conversation that outgrows the context loses its oldest turns (`SessionDetails.when_full`), before an answer
        or in the middle of it; a chunk's `event` reports that. The text that follows is that of a new session with the
        kept messages. Raises ContextExceeded, before anything changes, if the prompt alone does not fit, or no turn may
        be dropped.
        top_logprobs: give each token's log probability and this many of the likeliest tokens, 0 to 20; None: neither.
        constraint: what the answer's tokens are restricted to, by a set or a function; not with a grammar.
        expected: a text that the answer may be or repeat, as a file that it edits: drafts are taken from it too.
        Raises CapabilityError with entropy switching, whose tokens the target does not process, for either.
        """
        message = Message("user", prompt) if isinstance(prompt, str) else prompt
        top, given = top_logprobs, constraint
        return self._running.own.run(lambda: self._prepare(message, max_tokens, stop, top, given, expected))

    def generate(
        self,
        prompt: str | Message,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        constraint: Given | None = None,
        expected: str | None = None,
    ) -> Completion:
        """Answer a message, as `stream`, and return the complete reply."""
        top, given = top_logprobs, constraint
        return self.collect(
            self.stream(prompt, max_tokens=max_tokens, stop=stop, top_logprobs=top, constraint=given, expected=expected)
        )

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        constraint: Given | None = None,
        expected: str | None = None,
    ) -> Answer:
        """Continue a text, or token ids, without chat template and transcript. Options as `stream`.

        Raises InputError for ids outside the vocabulary.
        """
        top, given = top_logprobs, constraint
        return self._running.own.run(lambda: self._prepare(prompt, max_tokens, stop, top, given, expected))

    def samples(
        self,
        prompt: str | Message | Sequence[int],
        count: int,
        *,
        raw: bool = False,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        constraint: Given | None = None,
        score: Scored | None = None,
    ) -> Samples:
        """Answer a message several times at once. The prompt is processed once, and a pass has a row for each answer.

        The answers' seeds are `seed`, `seed` + 1, ...; each answer is, token for token, that of a new session with its
        seed, until the context is full. The transcript stays as it was: `reset` with an answer goes on from there. raw:
        as `complete`, and so token ids. score: answers that a function scores higher go on in the place of others; all
        chunks then come at the end. Raises CapabilityError for engines of chains, switching and the ratio rule.
        """
        asked = Message("user", prompt) if isinstance(prompt, str) and not raw else prompt
        most, top = max_tokens, top_logprobs
        return self._sampled([asked] * count, max_tokens=most, stop=stop, top=top, constraint=constraint, score=score)

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
        constraint: Given | None = None,
        score: Scored | None = None,
    ) -> Samples:
        """Return the running answers to these prompts."""
        from edgedecode.sessions.samples import new_samples, sampled  # late: one answer needs none

        shared, turns = self._shared, self._turns
        check_samples(count := len(prompts), self.options, shared.target.card)
        if seeds is not None and len(seeds) != count:
            raise InputError(f"{count} answers need a seed each and there are {len(seeds)}")
        limit = answer_limit(max_tokens, shared.manifest.generation)
        reply = partial(self._reply, stop, top)

        def prepare() -> Samples:
            self._running.end()
            every = [turns.open(prompt, limit=limit) for prompt in prompts]
            setting, rows, begin = self._decoding.setting, self._decoding.rows, self._decoding.constraint
            if score is not None:
                needed = len(every[0].tokens) + count * limit
                score.check(count, self.sampling, rows=rows, needed=needed, context=turns.context)
            first = self._next_seed()
            samples = new_samples(
                seeds or range(first, first + count),
                reply=reply,
                budget=shared.budget,
                constraint=lambda: begin(constraint),
            )
            self.stats = samples[0].stats
            particles = None if score is None else partial(score.particles, reply=reply)
            chunks = sampled(shared, turns, every, samples, setting, limit=limit, rows=rows, particles=particles)
            return self._running.samples(chunks, [each.stats for each in samples])

        return self._running.own.run(prepare)

    def score(self, prompt: str | Sequence[int], *, top_logprobs: int = 0) -> list[TokenLogprob | None]:
        """Return each token's log probability given those before it, None for the first; `tokens` are then the prompt.

        The prompt may fill the context. top_logprobs: as in `stream`. `complete` with the same prompt reuses its KV
        cache. Raises as `complete`, and CapabilityError if another call of this session stops it.
        """

        def prepare() -> Answer:
            self._decoding.check_whole_rows("a score")
            self._running.end()
            draw, rows = self._decoding.row_draw, self._decoding.rows
            scores = self._turns.scores(prompt, self._shared.target, draw, top=top_logprobs, rows=rows)
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
        self,
        prompt: Message | str | Sequence[int],
        max_tokens: int | None,
        stop: Sequence[str],
        top: int | None,
        given: Given | None,
        expected: str | None,
    ) -> Answer:
        """Stop the running answer and return the next one, with its tokens, seed and statistics. No pass runs yet."""
        limit = answer_limit(max_tokens, self._shared.manifest.generation)
        reply = self._reply(stop, top)
        constraint = None if given is None else self._decoding.constraint(given)
        self._running.end()
        turn = self._turns.open(prompt, limit=limit)
        self.stats = Stats(seed=self._next_seed())
        chunks = self._decoding.begin(
            turn, reply, self.stats, seed=self.seed, limit=limit, constraint=constraint, expected=expected
        )
        return self._running.run(chunks, self.stats)

    def _reply(self, stop: Sequence[str], top: int | None) -> Reply:
        shared, thinking = self._shared, self._shared.thinking
        if top is not None:
            self._decoding.check_whole_rows("a log probability")
        marks = () if thinking is None else (thinking.start, thinking.end)
        return Reply.begin(shared.tokenizer, stop=stop, top_logprobs=top, options=self.options, marks=marks)

    def _next_seed(self) -> int:
        self.seed = answer_seed(self.options.seed, self._answers) if self._answers else self.seed
        self._answers += 1
        return self.seed

    def _end(self) -> None:
        """End a running answer and release everything, as part of `close`, even if some of it raises."""
        with ExitStack() as closing:
            closing.callback(self._shared.turn.run, self._decoding.close)
            if (answer := self._running.answer) is not None:
                answer.end()
