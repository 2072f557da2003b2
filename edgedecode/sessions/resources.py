"""The resources that a pair's sessions share: models, tokenizer, memory budget, measured costs, and their lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, finalize

from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.source import DrafterSource
from edgedecode.engines.interface import Runtime
from edgedecode.engines.registry import find_drafter
from edgedecode.errors import BudgetExceeded, CapabilityError, EdgeDecodeError, InputError
from edgedecode.fair_lock import FairLock
from edgedecode.memory.budget import VARIATION_NBYTES, Budget, Lease
from edgedecode.memory.pressure import MemoryPressure
from edgedecode.memory.process_memory import release_pages
from edgedecode.options import SessionDetails, SessionOptions
from edgedecode.pack.manifest import Manifest
from edgedecode.sampling.row_draw import RowDraw, row_draw_of
from edgedecode.schedule.experience import Experience
from edgedecode.sessions.draft_models import DRAFT_ROLES, DraftModels, role_of
from edgedecode.sessions.drafter_choice import DrafterChoice, DraftingFacts, choose_drafters
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.text.thinking import MOST_THOUGHT, Thinking, thinking_in, thought_limit
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.user_notices import notice

if TYPE_CHECKING:
    from edgedecode.adapters.pack_adapters import PackAdapters
    from edgedecode.decoding.constraint import Constraint
    from edgedecode.memory.planner import MemoryPlan
    from edgedecode.structured.grammar import Grammar
    from edgedecode.structured.guidance import GrammarTokens
    from edgedecode.structured.matching import GuidanceConstraint
    from edgedecode.structured.thought_limit import ThoughtLimit


class Returnable(Protocol):
    """A part of a session that can be released while the session is open."""

    @property
    def switches(self) -> bool:
        """Whether the draft model writes tokens now (entropy switching)."""
        ...

    @property
    def draft_models(self) -> Sequence[LanguageModel]:
        """The draft models in use."""
        ...

    def give_back(self) -> bool:
        """Release the memory; return whether there was any."""
        ...


@dataclass(slots=True)
class Resources:
    """Everything a session needs from its pair. The pair creates and closes it."""

    manifest: Manifest
    root: Path
    tokenizer: Tokenizer
    budget: Budget
    engine: Runtime
    provider: str
    target: LanguageModel
    drafts: DraftModels
    """The draft model, loaded by the first session that uses it."""
    footprint: PackFootprint | None
    """The memory plan of sessions; None: the engine cannot plan."""
    preferred: tuple[str, ...]
    """The drafters with a draft model that sessions may choose by default, the preferred one first."""
    turn: FairLock
    """Held while the models, or anything else here, are used."""
    sources: dict[str, DrafterSource]
    """The drafters by name."""
    experience: Experience = field(default_factory=Experience)
    """Measured costs of forward passes and acceptance of drafts: updated by the scheduler of every session."""
    pressure: MemoryPressure = field(default_factory=MemoryPressure)
    draftings: WeakSet[Returnable] = field(default_factory=WeakSet)
    """The drafters of each session."""
    grammar_tokens: GrammarTokens | None = None
    """The tokens as grammars need them; made for the first session with a grammar, and leased then."""
    grammar_lease: Lease | None = None
    target_adapters: PackAdapters | None = None
    """The target's adapters; made when one is used."""
    clock: Callable[[], float] = perf_counter
    """Seconds, by which rounds are timed."""
    thinking: Thinking | None = field(init=False)
    """How the target thinks; None: it does not, or nothing is known to end its thoughts."""

    def __post_init__(self) -> None:
        template, token_id = self.tokenizer.chat_template.source, self.tokenizer.token_to_id
        self.thinking = self.manifest.thinking or thinking_in(template, token_id)
        self.experience.costs.pad_to(self.target.card.widths, away=self.target.card.away_seconds)

    def choice(self, options: SessionOptions) -> DrafterChoice:
        """Return the drafters for these options. Raises as `choose_drafters`."""
        if options.drafter not in (None, NO_DRAFTER):  # which may be loaded only now
            self.drafter_source(options.drafter)
        facts = DraftingFacts(self.target.card, self.preferred, self.sources)
        return choose_drafters(options, facts)

    def adapters(self) -> PackAdapters:
        """Return the pack's adapters for the target."""
        if self.target_adapters is None:
            from edgedecode.adapters.pack_adapters import PackAdapters

            self.target_adapters = PackAdapters(
                self.manifest, self.root, model=self.target, budget=self.budget, turn=self.turn
            )
        return self.target_adapters

    def constraint(self, options: SessionOptions, *, rows: int) -> Constraint | None:
        """Return what restricts answers: a grammar, a limit of thoughts, or nothing. rows: of logits in a pass.

        Raises as `GrammarTokens`, and InputError, CapabilityError and BudgetExceeded.
        """
        if options.grammar is None:
            return self._thought_limit(options.details, rows=rows)
        if (options.details.think_tokens or 0) > 0:
            raise InputError(
                "a grammar covers the whole answer, so that there is no place to think in: leave out the thinking "
                "budget, or the grammar"
            )
        return self._grammar(options.grammar)

    def _thought_limit(self, details: SessionDetails, *, rows: int) -> ThoughtLimit | None:
        most, thinking = thought_limit(details.think, details.think_tokens), self.thinking
        if most is None:
            return None
        if not 0 <= most <= MOST_THOUGHT:
            raise InputError(f"a thinking budget of {most} tokens is out of range: 0 to {MOST_THOUGHT}, or -1 for none")
        if thinking is None:
            if details.think_tokens:  # an effort is no promise
                raise InputError(
                    f"a thinking budget of {most} tokens cannot be held: nothing in this pack's chat template ends a "
                    "thought"
                )
            return None
        if details.switch is not None:
            if most:
                raise CapabilityError("a thinking budget needs verified tokens: leave out switching, or the budget")
            return None
        from edgedecode.structured.thought_limit import ThoughtLimit

        return ThoughtLimit(self.tokenizer, thinking, most=most, message=details.think_message, at_once=rows - 1)

    def _grammar(self, grammar: Grammar) -> GuidanceConstraint:
        from edgedecode.structured.guidance import compiled_nbytes

        lease = self.budget.reserve("compiled grammar", compiled_nbytes(grammar))
        try:
            constraint = self.tokens_of_grammars().constraint(grammar)
        except BaseException:
            lease.release()
            raise
        finalize(constraint, lease.release)
        return constraint

    def tokens_of_grammars(self) -> GrammarTokens:
        """Return the target's tokens as grammars need them. Raises as `GrammarTokens`, and BudgetExceeded."""
        if self.grammar_tokens is None:
            from edgedecode.structured.guidance import GrammarTokens, grammar_nbytes

            rows, ends = self.target.card.rows, self.manifest.end_ids
            lease = self.budget.reserve("grammar", grammar_nbytes(rows))
            try:
                self.grammar_tokens = GrammarTokens(self.tokenizer, rows=rows, ends=ends)
            except BaseException:
                lease.release()
                raise
            self.grammar_lease = lease
        return self.grammar_tokens

    def smaller_session(self, options: SessionOptions) -> SessionOptions | None:
        """Return reduced options that fit the budget: a shorter context, and as the last resort no drafts.

        None if nothing fits without giving up an explicit option.
        """
        plan = self._plan(options)
        if plan is None or not plan.fits:
            return None
        plain = plan.choice.drafters == () and options.drafter is None
        smaller = replace(_without_drafts(options) if plain else options, context=plan.choice.context)
        return smaller if smaller != options else None

    def refused(self, error: BudgetExceeded, options: SessionOptions) -> BudgetExceeded:
        """Return the error of a session that does not fit, with the smallest budgets to run and to draft if known.

        error: raised by the first allocation that did not fit.
        """
        plan, limit = self._plan(options), self.budget.limit
        if plan is None or plan.fits or plan.limit_nbytes is None or limit is None:
            return error
        beside = limit.nbytes - plan.limit_nbytes + VARIATION_NBYTES  # the next process may be as much larger
        return plan.refusal(error, limit, beside=beside, context_asked=options.context is not None)

    def _plan(self, options: SessionOptions, *, drafts_given_back: bool = False) -> MemoryPlan | None:
        """Return the plan of one more session; None if the engine cannot plan, or cannot read the pack now."""
        if self.footprint is None:
            return None
        try:
            unused = DRAFT_ROLES if drafts_given_back else self.drafts.unused(self.used_drafts)
            return self.footprint.fit_session(options, self.budget, given_back=unused)
        except BudgetExceeded:  # reading the drafts' graphs takes memory too
            plain = _without_drafts(options)
            return None if plain == options else self._plan(plain, drafts_given_back=drafts_given_back)
        except (EdgeDecodeError, OSError):  # the pack's files are gone
            return None

    def session_without_model(self, options: SessionOptions) -> SessionOptions | None:
        """Release the drafters of other sessions, and return options without the draft model that fit then.

        None if nothing fits, or the options ask for the draft model. Other sessions draft again once memory allows.
        """
        if any(self.drafter_source(name).needs_model for name in self.choice(options).names):
            if options.drafter is not None or options.fixed:
                return None
            options = _without_drafts(options)
        plan = self._plan(options, drafts_given_back=True)
        if (plan is not None and not plan.fits) or not self.give_back_drafts():
            return None
        notice("the draft model was released: another session needs its memory")
        return self.smaller_session(options) or options

    def mind_memory(self) -> None:
        """If the system is short of memory, release something that sessions can do without, one step per second."""
        if not (self.pressure.looked() and self.pressure.short):
            return
        switched = [drafting for drafting in self.draftings if drafting.switches]
        if released := self.give_back():
            ended = switched and not any(drafting.switches for drafting in switched)
            effect = "the target writes all tokens" if ended else "answers stay the same"
            notice(f"the system is short of memory: {released} released; {effect}")

    def give_back(self) -> str:
        """Release the next thing that sessions can do without, in the order of the memory plan, and return its name.

        Empty: nothing is left to release. Hold the turn.
        """
        if self.budget.give_back():
            released = "unused adapters were"
        elif self.give_back_drafts():
            released = "the draft model was"
        else:
            return ""
        release_pages()
        return released

    def give_back_drafts(self) -> bool:
        """Close the draft model and the sessions' drafters that use it; return whether any existed. Hold the turn."""
        released = [drafting for drafting in list(self.draftings) if drafting.give_back()]
        loaded = self.drafts.loaded
        self.drafts.keep(())
        return bool(released or loaded)

    @property
    def used_drafts(self) -> list[LanguageModel]:
        """The draft models that sessions use."""
        return [model for drafting in list(self.draftings) for model in drafting.draft_models]

    def draft_model(self, drafter: str) -> LanguageModel | None:
        """Return the draft model that a drafter of a session runs. Raises as `DraftModels.for_session`."""
        return self.drafts.for_session(role_of(drafter), used=self.used_drafts)

    def drafter_source(self, name: str) -> DrafterSource:
        """Return the shared source of this name. Raises InputError for an unknown name."""
        if name not in self.sources:
            self.sources[name] = find_drafter(name)
        return self.sources[name]

    def row_draw(self) -> RowDraw:
        """Return a new sampler of tokens from rows of logits, for one session."""
        return row_draw_of(self.engine)


def _without_drafts(options: SessionOptions) -> SessionOptions:
    """Return options without drafts and the ratio rule, which only concerns drafts."""
    return replace(options, drafter=NO_DRAFTER, details=replace(options.details, rule=Rule.MATCH))
