"""What the sessions of a pair share: models, tokenizer, memory, what was learnt, and the lock around all of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakSet

from edgedecode.adapters.pack_adapters import PackAdapters
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.source import DrafterSource
from edgedecode.engines.identical_widths import IdenticalWidths
from edgedecode.engines.interface import Runtime
from edgedecode.engines.registry import find_drafter, lookup_names
from edgedecode.errors import BudgetExceeded, EdgeDecodeError
from edgedecode.memory.budget import Budget
from edgedecode.memory.planner import MemoryPlan
from edgedecode.memory.pressure import MemoryPressure
from edgedecode.memory.process_memory import release_pages
from edgedecode.options import SessionOptions
from edgedecode.pack.manifest import Manifest
from edgedecode.sampling.row_draw import RowDraw, row_draw_of
from edgedecode.schedule.experience import Experience
from edgedecode.sessions.draft_models import DraftModels
from edgedecode.sessions.drafter_choice import DrafterChoice, DraftingFacts, choose_drafters
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.turns import FairLock
from edgedecode.user_notices import notice

__all__ = ["Resources", "Returnable"]


class Returnable(Protocol):
    """Something of a session that it can do without."""

    def give_back(self) -> bool:
        """Give its memory back; tell whether there was any."""
        ...


@dataclass(slots=True)
class Resources:
    """Everything a session needs of its pair, which makes and closes it."""

    manifest: Manifest
    tokenizer: Tokenizer
    budget: Budget
    engine: Runtime
    provider: str
    target: LanguageModel
    drafts: DraftModels
    """The draft model, loaded by the first session that uses it."""
    footprint: PackFootprint | None
    """What sessions take; None: the engine does not tell."""
    heads: tuple[str, ...]
    """Drafters with smaller heads of the draft model that the scheduler chooses among."""
    adapters: PackAdapters
    turn: FairLock
    """Held while the models, or anything else here, are used."""
    experience: Experience = field(default_factory=Experience)
    """What passes cost here and what drafts gained: every session's scheduler learns in it."""
    identical_widths: dict[str, IdenticalWidths] = field(default_factory=dict)
    """By adapter the pass widths that round alike here, once a reproducible session asked."""
    lookups: tuple[str, ...] = field(default_factory=lookup_names)
    """Drafters that are a function and that the scheduler asks."""
    sources: dict[str, DrafterSource] = field(default_factory=dict)
    pressure: MemoryPressure = field(default_factory=MemoryPressure)
    draftings: WeakSet[Returnable] = field(default_factory=WeakSet)
    """What each session drafts with."""

    def choice(self, options: SessionOptions) -> DrafterChoice:
        """Return the drafters these options mean. Raises as `choose_drafters`."""
        has_draft = "draft" in self.manifest.models
        return choose_drafters(options, DraftingFacts(self.target.card, has_draft, self.heads, self.lookups))

    def smaller_session(self, options: SessionOptions) -> SessionOptions | None:
        """Return options that fit for a session whose own do not: a shorter context, at last no drafts.

        None where nothing fits that leaves what was asked for.
        """
        plan = self._plan(options)
        if plan is None or not plan.fits:
            return None
        plain = plan.choice.drafters == () and options.drafter is None
        if plain and options.trace is not None:  # of nothing that could be chosen
            return None
        smaller = replace(_plainly(options) if plain else options, context=plan.choice.context)
        return smaller if smaller != options else None

    def refused(self, error: BudgetExceeded, options: SessionOptions) -> BudgetExceeded:
        """Return the refusal of a session with the smallest budgets that it runs and drafts in, where they are known.

        error: what was asked for first that did not fit.
        """
        plan, limit = self._plan(options), self.budget.limit
        if plan is None or plan.fits or plan.limit_nbytes is None or limit is None:
            return error
        beside = limit.nbytes - plan.limit_nbytes
        return plan.refusal(error, limit, beside=beside, context_asked=options.context is not None)

    def _plan(self, options: SessionOptions, *, drafts_given_back: bool = False) -> MemoryPlan | None:
        """Return the plan of one more session; None where the engine does not tell, or cannot read the pack now."""
        if self.footprint is None:
            return None
        try:
            return self.footprint.fit_session(options, self.budget, drafts_given_back=drafts_given_back)
        except (EdgeDecodeError, OSError):  # the pack's files are gone, or reading them does not fit: nor would they
            return None

    def session_without_model(self, options: SessionOptions) -> SessionOptions | None:
        """Give back what other sessions draft with, and return options for a session that fits then, without the model.

        None where none does, or drafts by the model were asked for. The others draft again as soon as there is room.
        """
        if any(self.drafter_source(name).needs_model for name in self.choice(options).names):
            if options.drafter is not None or options.fixed or options.trace is not None:
                return None
            options = _plainly(options)
        plan = self._plan(options, drafts_given_back=True)
        if (plan is not None and not plan.fits) or not self.give_back_drafts():
            return None
        notice("the draft model was given back: a further session needs its memory")
        return self.smaller_session(options) or options

    def mind_memory(self) -> None:
        """Where the system is short of memory, give back what sessions can do without: a step a second."""
        if self.pressure.looked() and self.pressure.short and (given := self.give_back()):
            notice(f"memory is short here: {given} given back; answers stay the same")

    def give_back(self) -> str:
        """Give back the next of what sessions can do without, as plans do it; say what that was. Hold the turn.

        Empty: nothing is left of it.
        """
        if self.budget.give_back():
            given = "past answers and unused adapters were"
        elif self.give_back_drafts():
            given = "the draft model was"
        else:
            return ""
        release_pages()
        return given

    def give_back_drafts(self) -> bool:
        """Close what sessions draft with by a model, and the draft model; tell whether there was any. Hold the turn."""
        given = [drafting for drafting in list(self.draftings) if drafting.give_back()]
        loaded = self.drafts.loaded
        self.drafts.keep(0)
        return bool(given or loaded)

    def drafter_source(self, name: str) -> DrafterSource:
        """Return the one source of this name. Raises InputError for an unknown name."""
        if name not in self.sources:
            self.sources[name] = find_drafter(name)
        return self.sources[name]

    def row_draw(self) -> RowDraw:
        """Return a new helper that draws tokens from rows of logits, for one session."""
        return row_draw_of(self.engine)


def _plainly(options: SessionOptions) -> SessionOptions:
    """Return options that draft nothing; rules differ in how drafts are verified."""
    return replace(options, drafter=NO_DRAFTER, tree=False, rule=Rule.MATCH)
