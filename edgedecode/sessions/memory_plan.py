"""Plan a session's memory by holder before anything is loaded, and fit it to a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.decoding.model import ModelCard
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.model_drafter import distributions_nbytes
from edgedecode.drafters.model_state import TREE_ROWS, shorter_windows
from edgedecode.drafters.source import DrafterSource, PlannedSource
from edgedecode.engines.interface import (
    ADAPTERS,
    NO_MMAP,
    ModelFootprint,
    ModelRequest,
    PlanningRuntime,
    check_heads,
    draft_engine,
    role_needs,
    serves_heads,
)
from edgedecode.engines.registry import drafter_sources, find_drafter
from edgedecode.engines.selection import EngineRequest
from edgedecode.errors import CapabilityError, EdgeDecodeError
from edgedecode.memory.budget import Budget, Holder, total_nbytes
from edgedecode.options import SessionOptions, planned_context
from edgedecode.pack.entries import DRAFT, DRAFT_ADAPTER, HEAD, TRIM
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_tokenizer import draft_tokenizer_holder
from edgedecode.sampling.row_draw import SCRATCH_NBYTES, RowDraw, row_draw_of
from edgedecode.sessions.draft_models import FULL, preferred_drafters
from edgedecode.sessions.drafter_choice import DraftingFacts, check_options, choose_drafters, instead
from edgedecode.text.encoder import prompts_holder
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.user_notices import notice

if TYPE_CHECKING:  # what fits is asked of a plan, or where a session does not
    from edgedecode.memory.planner import Bounds, Choice, MemoryPlan


def sampling_holder(size: int, row_draw: RowDraw) -> Holder:
    """Return the memory for sampling a token from a vocabulary of `size` ids."""
    return Holder("sampling", SCRATCH_NBYTES * size + row_draw.scratch_nbytes(size))


class PackFootprint:
    """The memory that sessions of one pack need on one engine.

    process: holders that exist before a model is open. budget: memory for reading graphs is leased from it. sources: of
    the drafters; None: of those installed. Models are planned as `Pair` opens them. Nothing is loaded, but a converted
    file that an engine needs is built.
    """

    def __init__(
        self,
        manifest: Manifest,
        root: Path,
        *,
        tokenizer: Tokenizer,
        engine: PlanningRuntime,
        process: Sequence[Holder],
        budget: Budget,
        request: EngineRequest,
        sources: Mapping[str, DrafterSource] | None = None,
    ) -> None:
        self._manifest, self._root, self._tokenizer, self._engine = manifest, root, tokenizer, engine
        self._process, self._budget = tuple(process), budget
        self._provider, self._threads = request.provider, request.threads
        self._kv_type, self._loading = request.kv_type or "", request.loading
        self._sources = drafter_sources() if sources is None else sources
        self._models: dict[tuple[str, str, tuple[str, ...]], ModelFootprint] = {}
        self._adapters: dict[str, tuple[int, int]] = {}

    @property
    def card(self) -> ModelCard:
        """The target's card."""
        return self._model("target", self._kv_type).card

    def check_draft(self) -> None:
        """Raise what planning the draft model raises: its engine or its graph is missing."""
        self._model(DRAFT, self._kv_type)

    def fit(self, options: SessionOptions, limit_nbytes: int | None) -> MemoryPlan:
        """Return the plan of a session under a limit. Raises as opening a session with these options does."""
        wanted, bounds = self._wanted(options)
        bounds = replace(bounds, may_skip_mmap=self._gains_without_mmap(wanted.kv_type))
        return _fit(wanted, bounds, self.holders, limit_nbytes)

    def least_with(self, kv_type: str, options: SessionOptions) -> int | None:
        """Return the smallest limit with another KV type; None if this pack or engine does not support it."""
        try:
            wanted, bounds = self._wanted(options)
            wanted = replace(wanted, kv_type=kv_type)
            bounds = replace(bounds, may_skip_mmap=self._gains_without_mmap(kv_type))
            return _fit(wanted, bounds, self.holders, None).least_running
        except CapabilityError:
            return None

    def fit_session(self, options: SessionOptions, budget: Budget, *, given_back: Sequence[str] = ()) -> MemoryPlan:
        """Return the plan of a session in the rest of a budget, next to the models that are open.

        Memory that other holders can release counts as free, but not the session's adapter if it is loaded; also the
        draft models of the roles `given_back`, unless the session drafts with them, and their states.
        """
        wanted, bounds = self._wanted(options)
        adapter = f"adapter:{wanted.adapter}"
        kept = [lease for lease in budget.leases if lease.reclaim is None or lease.name == adapter]
        kept = [lease for lease in kept if not _is_drafts(lease.name, given_back)]
        names = {lease.name for lease in kept}
        free = None if budget.limit_nbytes is None else budget.limit_nbytes - sum(lease.nbytes for lease in kept)

        def holders(choice: Choice) -> list[Holder]:
            loaded = [*self._adapter(choice.adapter, choice.adapter_scale), *self._shared(choice)]
            shared = names & {holder.name for holder in loaded}
            return [holder for holder in self._of_session(choice) if holder.name not in shared]

        return _fit(wanted, bounds, holders, free)

    def holders(self, choice: Choice) -> tuple[Holder, ...]:
        """Return the memory of the process with one session, one holder per lease."""
        target = self._model("target", choice.kv_type, no_mmap=choice.no_mmap)
        session = self._of_session(choice)
        loading = max(0, target.loading_nbytes - total_nbytes(session))  # released before the session is opened
        found = [*self._process, *target.loaded, Holder("reading weights", loading), *session]
        return _merged(found)

    def _wanted(self, options: SessionOptions) -> tuple[Choice, Bounds]:
        """Return the choice that the options mean with unlimited memory, and how far it may be reduced."""
        from edgedecode.memory.planner import LEAST_CONTEXT, Bounds, Choice

        card = self.card
        sources = dict(self._sources)
        if options.drafter not in (None, NO_DRAFTER):
            sources[options.drafter] = self._source(options.drafter)
        facts = DraftingFacts(card, self.preferred, sources)
        drafting = choose_drafters(options, facts)
        check_options(options, drafting, card=card)
        wanted = Choice(
            context=planned_context(options.context, card.context),
            drafters=drafting.names,
            draft_max=drafting.draft_max,
            tree=drafting.branches and card.tree,
            kv_type=self._kv_type,
            adapter=options.adapter or "",
            adapter_scale=options.details.adapter_scale,
            sampled=options.details.rule is Rule.RATIO,
            switches=options.details.switch is not None,
        )
        models = frozenset(name for name in (*wanted.drafters, FULL) if self._source(name).needs_model)
        own = f"{DRAFT_ADAPTER}{wanted.adapter}"
        if self._uses_draft(wanted) and own in self._manifest.adapters and ADAPTERS in self._draft_needs:
            wanted = replace(wanted, draft_adapter=own)
        bounds = Bounds(
            models=models,
            draft_contexts=self._draft_contexts(wanted) if self._uses_draft(wanted) and not wanted.tree else (),
            least_context=wanted.context if options.context is not None else min(LEAST_CONTEXT, wanted.context),
            keeps_drafters=options.drafter is not None or options.fixed,
            instead=instead(wanted.drafters, self.preferred) if options.drafter is None else "",
        )
        return wanted, bounds

    def _of_session(self, choice: Choice) -> tuple[Holder, ...]:
        """Return what opening a session leases if no other session is open."""
        target = self._model("target", choice.kv_type, no_mmap=choice.no_mmap)
        size = target.card.vocabulary_size
        found = [
            *target.state(choice.context, rows=choice.draft_max + 1, tree=choice.tree),
            sampling_holder(size, self._row_draw),
            prompts_holder(self._tokenizer, choice.context),
            *self._shared(choice),
            *self._adapter(choice.adapter, choice.adapter_scale),
        ]
        sources = [self._source(name) for name in choice.drafters]
        if self._uses_draft(choice):
            draft = self._draft(choice)
            trees = choice.tree and draft.card.tree
            rows = TREE_ROWS if trees else 1
            positions = choice.draft_context or min(choice.context, draft.card.context)
            found += draft.state(positions, rows=rows, tree=trees)
        for source in sources:
            if source.needs_model and choice.sampled:
                found.append(Holder(f"distributions:{source.name}", distributions_nbytes(size, choice.draft_max)))
            if isinstance(source, PlannedSource):
                found += source.holders(capacity=choice.context, vocabulary_size=size)
        return _merged(found)

    def _adapter(self, name: str, scale: float) -> list[Holder]:
        """Return the most memory that an engine takes for an adapter, and for what it copies for a scale."""
        if not name:
            return []
        if name not in self._adapters:
            from edgedecode.adapters.adapter_memory import loaded_nbytes  # late: most sessions use none

            self._adapters[name] = loaded_nbytes(self._manifest, self._root, name)
        nbytes, copied = self._adapters[name]
        return [
            Holder(f"adapter:{name}", nbytes),
            *([Holder(f"adapter:{name}:{scale:g}", copied)] if scale != 1 else []),
        ]

    def _shared(self, choice: Choice) -> list[Holder]:
        """Return what the first session that uses the draft model loads for all sessions."""
        if not self._uses_draft(choice):
            return []
        target = self._model("target", choice.kv_type, no_mmap=choice.no_mmap)
        draft = self._draft(choice)
        own = self._adapter(choice.draft_adapter, choice.adapter_scale)
        loaded = (*draft.loaded, Holder(f"weights:{_role(choice)}", draft.loading_nbytes), *own)
        if _role(choice) == DRAFT:
            loaded = (*loaded, draft_tokenizer_holder(self._manifest))
        return [holder for holder in loaded if holder not in target.loaded]  # both models share the engine's code

    def _source(self, name: str) -> DrafterSource:
        return self._sources.get(name) or find_drafter(name)

    def _uses_draft(self, choice: Choice) -> bool:
        return choice.switches or any(self._source(name).needs_model for name in choice.drafters)

    @cached_property
    def _row_draw(self) -> RowDraw:
        return row_draw_of(self._engine)

    @cached_property
    def preferred(self) -> tuple[str, ...]:
        """The drafters with a draft model that sessions may choose by default, the preferred one first."""
        names = preferred_drafters(
            self._manifest,
            runtime=draft_engine(self._engine),
            kv_type=self._kv_type,
            loading=self._loading,
            heads=serves_heads(self._engine, self._provider),
        )
        if HEAD in names:
            try:
                self._model(HEAD, self._kv_type)
            except EdgeDecodeError as error:  # our kernels do not run it here, or it is damaged
                notice(f"the pack's head is not used: {error}")
                names = names[1:]
        if TRIM in names and (self._provider != "cpu" or getattr(self._engine, "draft_place", None) is not None):
            try:
                self._model(TRIM, self._kv_type)
            except CapabilityError:  # the provider does not run its graph
                names = tuple(name for name in names if name != TRIM)
        return names

    @cached_property
    def _draft_needs(self) -> tuple[str, ...]:
        """How the full draft model is loaded: with its adapters if it can take them."""
        if ADAPTERS in self._loading and self._manifest.has_draft_adapters:
            with suppress(EdgeDecodeError):
                self._model_with(DRAFT, self._kv_type, (ADAPTERS,))
                return (ADAPTERS,)
        return ()

    def _draft_contexts(self, wanted: Choice) -> tuple[int, ...]:
        """Return the shorter contexts that the draft model may have: none if it writes tokens itself."""
        if wanted.switches:
            return ()
        draft = self._draft(wanted)
        return shorter_windows(min(wanted.context, draft.card.context))

    def _gains_without_mmap(self, kv_type: str) -> bool:
        """Return whether weights need less memory when they are read than when they are mapped."""
        try:
            unmapped = self._model("target", kv_type, no_mmap=True)
        except CapabilityError:
            return False
        return total_nbytes(unmapped.loaded) < total_nbytes(self._model("target", kv_type).loaded)

    def _draft(self, choice: Choice) -> ModelFootprint:
        """Return the footprint of the draft model that the choice's drafters run."""
        return self._model(_role(choice), choice.kv_type, no_mmap=choice.no_mmap)

    def _model(self, role: str, kv_type: str, *, no_mmap: bool = False) -> ModelFootprint:
        """Return a role's footprint with this KV type; a draft that does not support it uses its default."""
        needs = (*(self._draft_needs if role == DRAFT else ()), *role_needs(role, self._loading))
        needs = (*needs, NO_MMAP) if no_mmap and NO_MMAP not in needs else needs
        return self._model_with(role, kv_type, needs)

    def _model_with(self, role: str, kv_type: str, needs: tuple[str, ...]) -> ModelFootprint:
        key = role, kv_type, needs
        if key not in self._models:
            try:
                self._models[key] = self._planned(role, (*needs, f"kv:{kv_type}") if kv_type else needs)
            except CapabilityError:
                if role == "target" or not kv_type:
                    raise
                self._models[key] = self._planned(role, needs)
        return self._models[key]

    def _planned(self, role: str, needs: Sequence[str]) -> ModelFootprint:
        if role == HEAD:
            check_heads(self._engine, self._provider)
        entry = self._manifest.located(role)
        return self._engine.footprint(
            ModelRequest(
                entry,
                self._root,
                role,
                entry.rows if entry.own_tokenizer else self._tokenizer.size,
                self._budget,
                threads=self._threads,
                provider=self._provider,
                needs=needs,
            )
        )


def _fit(
    wanted: Choice, bounds: Bounds, holders: Callable[[Choice], Sequence[Holder]], limit_nbytes: int | None
) -> MemoryPlan:
    from edgedecode.memory.planner import fit

    return fit(wanted, bounds=bounds, holders=holders, limit_nbytes=limit_nbytes)


def _is_drafts(lease_name: str, roles: Sequence[str]) -> bool:
    """Return whether a lease is of a draft model of these roles, its states or its adapters."""
    kind, _, rest = lease_name.partition(":")
    return (DRAFT in roles and rest.startswith(DRAFT_ADAPTER)) if kind == "adapter" else rest in roles


def _role(choice: Choice) -> str:
    """Return the role of the draft model that the choice's drafters run."""
    return next((name for name in choice.drafters if name in (HEAD, TRIM)), DRAFT)


def _merged(holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """Sum the holders of the same name."""
    sums: dict[str, int] = {}
    for name, nbytes in holders:
        sums[name] = sums.get(name, 0) + nbytes
    return tuple(Holder(name, nbytes) for name, nbytes in sums.items() if nbytes)
