"""Decodes a session's answers, and holds what each of them needs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import finalize

from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.model import TopState
from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Outcome, Rule
from edgedecode.drafters.source import DraftSetting
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.process_memory import peak_nbytes, release_pages
from edgedecode.options import SessionOptions, sampling_defaults
from edgedecode.sampling.sampler import Noise, Sampler, answer_seed
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Reply, WentAlone
from edgedecode.sessions.drafter_choice import check_options, most_rows
from edgedecode.sessions.memory_plan import sampling_holder
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.session_drafting import SessionDrafting
from edgedecode.sessions.turns import Turns
from edgedecode.text.messages import Message
from edgedecode.text.thinking import thought_limit
from edgedecode.text.transcript import Turn

if TYPE_CHECKING:
    from edgedecode.decoding.constraint import Constraint
    from edgedecode.decoding.drafter import Drafter
    from edgedecode.structured.given import Given


class SessionDecoding:
    """A session's turns, drafters, noise and grammar. It is called in the pair's turn, except for its creation.

    rows: of logits that a pass computes at most.
    """

    def __init__(self, shared: Resources, options: SessionOptions, *, messages: Sequence[Message], seed: int) -> None:
        self._shared, self._options, card = shared, options, shared.target.card
        sampling = options.sampling or sampling_defaults(shared.manifest.generation)
        self.sampling = sampling.for_vocabulary(card.vocabulary_size, shared.tokenizer.ids_containing)
        check_options(options, choice := shared.choice(options), card=card)
        if options.drafter is not None and choice.names:  # raises for an unknown name; other drafters are optional
            shared.drafter_source(options.drafter)
        self._noise, self._draft_noise = Noise(seed), Noise(seed, stream=1)
        self.ends = frozenset[int]() if options.details.ignore_eos else shared.manifest.end_ids
        self._constraint: Constraint | None = None  # of the running answer
        self._expected: Drafter | None = None
        self._top_state: TopState | None = None
        self.row_draw, self.rows = shared.row_draw(), most_rows(options, choice)
        self._own = shared.constraint(options, rows=self.rows)
        with ExitStack() as undo:
            self._scratch = shared.budget.reserve(*sampling_holder(card.vocabulary_size, self.row_draw))
            undo.callback(self._scratch.release)
            self.turns = Turns(shared, options, messages=messages, rows=self.rows, tree=choice.branches and card.tree)
            undo.callback(self.turns.close)
            if card.top_rows and isinstance(self.turns.state, TopState):
                from edgedecode.sessions.top_rows import top_needed  # late: of targets on servers

                self._top_state = self.turns.state
                self._top_state.top = top_needed(self.sampling, card, restricted=self._own is not None)
                self._top_state.sampling = self.sampling.as_dict()
                self._top_state.streams = not (choice.names and options.fixed)
                self._top_state.switches = options.details.switch is not None
            setting = DraftSetting(
                budget=shared.budget,
                sampling=self.sampling,
                vocabulary_size=card.vocabulary_size,
                capacity=self.turns.context,
                ends=self.ends,
                sampled=options.details.rule is Rule.RATIO,
                noise=self._noise,
                row_draw=self.row_draw,
                target_state=self.turns.state,
            )
            self.drafts = SessionDrafting(shared, options, setting, noise=self._draft_noise)
            undo.pop_all()
        shared.draftings.add(self.drafts)
        finalize(self, self._scratch.release)  # for a session that is garbage-collected without being closed

    def begin(
        self,
        turn: Turn,
        reply: Reply,
        stats: Stats,
        *,
        seed: int,
        limit: int,
        constraint: Constraint | None,
        expected: str | None = None,
    ) -> Generator[Chunk | None]:
        """Begin an answer with this seed, and return its chunks, as `_chunks` does. No pass runs yet.

        constraint: of this answer alone; None: the session's own, if any. expected: a text to draft from.
        """
        self._begin_noise(seed)
        if self._top_state is not None:
            self._top_state.limit = limit
        self._expected = self._expecting(expected) if expected else None
        self._constraint = constraint or self._own
        if self._constraint is not None:
            self._constraint.begin(turn.tokens)
        return self._chunks(turn, reply, stats, seed=seed, limit=limit)

    def constraint(self, given: Given | None) -> Constraint | None:
        """Return what restricts one answer; None: as the session's others. Raises InputError and CapabilityError."""
        shared, details = self._shared, self._options.details
        if given is None:
            return shared.constraint(self._options, rows=self.rows)
        from edgedecode.structured.given import CheckConstraint, SetConstraint, TokenSet  # late: few answers have one

        self.check_whole_rows("a constraint")
        if self._options.grammar is not None:
            raise InputError(
                "a grammar already restricts this session's answers: leave out the constraint, or the grammar"
            )
        if thought_limit(details.think, details.think_tokens):
            raise InputError("a thinking budget does not go with a constraint: leave out one of them")
        if details.switch is not None:
            raise CapabilityError("a constraint needs verified tokens: leave out switching")
        if isinstance(given, TokenSet):
            return SetConstraint(given.ids, vocabulary_size=shared.target.card.vocabulary_size)
        if details.rule is Rule.RATIO:
            raise CapabilityError(
                "the ratio rule needs the whole distribution, and a check sees drawn tokens only: use the match rule"
            )
        return CheckConstraint(given.function, tokenizer=shared.tokenizer, ends=self.ends)

    def check_whole_rows(self, what: str) -> None:
        """Raise CapabilityError if the target has not the logits of all tokens, which this needs."""
        if (card := self._shared.target.card).top_rows:
            from edgedecode.sessions.top_rows import check_whole_rows

            check_whole_rows(card, what)

    def setting(self, noise: Noise, constraint: Constraint | None) -> DecodeSetting:
        """Return the parts of an answer that decodes without drafts."""
        span, size = self.turns.reading.span, self._shared.target.card.vocabulary_size
        return DecodeSetting(
            adapter=span.use,
            adapter_from=span.start,
            sampler=Sampler(self.sampling, vocabulary_size=size, row_draw=self.row_draw),
            noise=noise,
            rule=self._options.details.rule,
            ends=self.ends,
            clock=self._shared.clock,
            constraint=constraint,
        )

    def close(self) -> None:
        """Release everything, even if some of it raises."""
        with ExitStack() as closing:
            # Last: the C library would keep the freed keys and values, which a later session may not be able to reuse.
            for close in (release_pages, self._scratch.release, self.turns.close):
                closing.callback(close)
            self._own = self._constraint = None  # its memory is leased for as long as it exists
            self.drafts.close()

    def _chunks(self, turn: Turn, reply: Reply, stats: Stats, *, seed: int, limit: int) -> Generator[Chunk | None]:
        """Yield an answer's chunks, and None where other threads may use the models.

        If the context becomes full, the answer goes on without the oldest turns.
        """
        turns, restarts = self.turns, 0
        with turns.answering(turn, reply, ends=self.ends):
            while True:
                stats.dropped_turns += turn.dropped
                yield from turns.dropped(turn)
                ended = yield from self._decoded(reply, stats, limit=limit - len(turn.reply))
                if ended or (shorter := turns.shorter(turn, limit=limit)) is None:
                    break
                turn, restarts = shorter, restarts + 1
                stats.reread_tokens += turns.begin(turn, lambda: reply.text)
                self._begin_noise(answer_seed(seed, -restarts))  # at these positions the seed's noise was used
            rest = reply.rest()
            self._note_memory(stats)
        stopped = ended or bool(reply.matched)
        stats.stop_string, stats.context_full = reply.matched, not stopped and turns.full
        yield Chunk(rest, (), TARGET_SOURCE, FinishReason.STOP if stopped else FinishReason.LENGTH)

    def _decoded(self, reply: Reply, stats: Stats, *, limit: int) -> Generator[Chunk | None, None, bool]:
        """Decode after the conversation's tokens; return whether the reply ended by itself, not at a limit."""
        shared, turns, tokens = self._shared, self.turns, self.turns.transcript.tokens
        shared.mind_memory()
        span, expected = turns.reading.span, self._expected
        with self.drafts.answering(stats, span.use, turns.reading.prompt, expected) as drafting:
            self._note_memory(stats)
            setting = replace(
                self.setting(self._noise, self._constraint), drafting=drafting, switching=self.drafts.switching
            )
            target, state = shared.target, turns.state
            for verdict in decode(target, state, tokens=tokens, max_tokens=limit, setting=setting, stats=stats):
                if verdict is None:
                    yield None
                    continue
                if alone := getattr(state, "alone", ""):
                    if not stats.alone_tokens:
                        yield Chunk("", (), TARGET_SOURCE, event=WentAlone(alone))
                    stats.alone_tokens += len(verdict.tokens)
                yield from reply.said(verdict, tokens, stats)
                shared.mind_memory()
                if reply.matched or verdict.outcome is Outcome.ENDED:
                    return True
        return False

    def _expecting(self, text: str) -> Drafter:
        from edgedecode.drafters.expected import ExpectedDrafter  # late: few answers are expected

        return ExpectedDrafter(self.turns.expected(text), ends=self.ends)

    def _begin_noise(self, seed: int) -> None:
        for noise in (self._noise, self._draft_noise):
            noise.begin(seed)
        if self._top_state is not None:
            self._top_state.seed = seed

    def _note_memory(self, stats: Stats) -> None:
        stats.planned_nbytes, stats.peak_nbytes = self._shared.budget.used_nbytes, peak_nbytes()
