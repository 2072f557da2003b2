"""What the sessions of a pair share: models, tokenizer, memory, what was learnt, and the lock around all of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.decoding.row_draw import RowDraw, row_draw_of
from edgedecode.draft_models import DraftModels
from edgedecode.drafter_choice import DrafterChoice, DraftingFacts, choose_drafters
from edgedecode.drafters.source import DrafterSource
from edgedecode.engines.identical_widths import IdenticalWidths
from edgedecode.engines.interface import Runtime
from edgedecode.engines.registry import find_drafter, lookup_names
from edgedecode.errors import EdgeDecodeError
from edgedecode.memory.budget import Budget
from edgedecode.memory_plan import PackFootprint
from edgedecode.options import SessionOptions
from edgedecode.pack.adapters import PackAdapters
from edgedecode.pack.manifest import Manifest
from edgedecode.schedule.experience import Experience
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.turns import FairLock

__all__ = ["Resources"]


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

    def choice(self, options: SessionOptions) -> DrafterChoice:
        """Return the drafters these options mean. Raises as `choose_drafters`."""
        has_draft = "draft" in self.manifest.models
        return choose_drafters(options, DraftingFacts(self.target.card, has_draft, self.heads, self.lookups))

    def smaller_session(self, options: SessionOptions) -> SessionOptions | None:
        """Return options that fit for a session whose own do not: a shorter context, at last no drafts.

        None where nothing fits that leaves what was asked for.
        """
        if self.footprint is None:
            return None
        try:
            plan = self.footprint.fit_session(options, self.budget)
        except (EdgeDecodeError, OSError):  # the pack's files are gone, or reading them does not fit: nor would they
            return None
        choice = plan.choice
        plain = choice.drafters == () and options.drafter is None
        smaller = replace(options, context=choice.context, drafter=NO_DRAFTER if plain else options.drafter)
        return smaller if plan.fits and smaller != options else None

    def drafter_source(self, name: str) -> DrafterSource:
        """Return the one source of this name. Raises InputError for an unknown name."""
        if name not in self.sources:
            self.sources[name] = find_drafter(name)
        return self.sources[name]

    def row_draw(self) -> RowDraw:
        """Return a new helper that draws tokens from rows of logits, for one session."""
        return row_draw_of(self.engine)
