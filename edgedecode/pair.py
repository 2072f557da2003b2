"""A loaded pack: target, draft, tokenizer and budget, from which sessions are opened."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from edgedecode.decoding.model import AdapterUse, LanguageModel
from edgedecode.drafters.source import DrafterSource
from edgedecode.engines.interface import (
    ADAPTERS,
    ModelRequest,
    PlanningRuntime,
    Runtime,
    check_heads,
    draft_engine,
    role_needs,
    serves_heads,
)
from edgedecode.engines.registry import drafter_sources
from edgedecode.engines.selection import EngineRequest
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError
from edgedecode.fair_lock import FairLock, when_free
from edgedecode.locks import Lock
from edgedecode.memory.budget import PROCESS, Budget, Holder
from edgedecode.memory.process_memory import release_pages
from edgedecode.memory.sizes import format_nbytes
from edgedecode.options import SessionOptions
from edgedecode.pack.entries import DRAFT, HEAD
from edgedecode.pack.integrity import check_unchanged
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import draft_tokenizer, draft_tokenizer_holder, process_holder, target_nbytes
from edgedecode.schedule.experience import Experience
from edgedecode.sessions.draft_models import DraftModels, preferred_drafters
from edgedecode.sessions.experience_file import load_experience, store_experience
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.session import Session
from edgedecode.text.messages import Message
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.user_notices import notice

if TYPE_CHECKING:
    from edgedecode.adapters.pack_adapters import AdapterChoice
    from edgedecode.structured.grammar import Grammar

__all__ = ["PROCESS", "Pair"]


class Pair:
    """A target, its optional draft, and everything that sessions share. Use it as a context manager, or `close` it.

    Several threads may use it and its sessions at once. The models serve one thread at a time: `turn` is held for one
    round of decoding (drafts, pass, verification), for one chunk of a prompt, and while a session is opened or closed,
    but never while a caller processes a chunk of output. Waiting threads get it in the order in which they asked.
    Direct calls of a model's `forward` are not locked: wrap them in `pair.turn.run(...)`.
    """

    def __init__(
        self,
        manifest: Manifest,
        root: Path,
        *,
        tokenizer: Tokenizer,
        runtime: Runtime,
        budget: Budget,
        request: EngineRequest = EngineRequest(),  # noqa: B008  (immutable)
    ) -> None:
        self.root = root
        self.runtime = runtime.name
        self._engine = runtime
        self.manifest, self.tokenizer, self.budget, self.provider = manifest, tokenizer, budget, request.provider
        self._request = request
        self._threads, self._kv_type, self._loading = request.threads, request.kv_type, request.loading
        self._experience_path: Path | None = None
        self._sessions: WeakSet[Session] = WeakSet()
        self._closed = False
        self._in_use: Lock | None = None
        process = process_holder(tokenizer, manifest, budget)
        self._process = budget.reserve(*process, fixed=True, following=target_nbytes(manifest))
        sources = drafter_sources()
        footprint, turn = self._footprint(process, sources), FairLock()
        try:
            if (place := getattr(runtime, "draft_place", None)) is not None:
                self._check_placed(place, footprint)
            target = self._open("target")
        except BaseException:
            self._process.release()
            raise
        self.shared = Resources(
            manifest=manifest,
            root=root,
            tokenizer=tokenizer,
            budget=budget,
            engine=runtime,
            provider=request.provider,
            target=target,
            drafts=DraftModels(self._load_draft, adapters=lambda model: self.shared.adapters().of_draft(model)),
            footprint=footprint,
            preferred=footprint.preferred if footprint is not None else self._preferred(),
            turn=turn,
            sources=sources,
        )
        """The resources that its sessions share."""
        self._adapters: AdapterChoice | None = None

    @property
    def target(self) -> LanguageModel:
        return self.shared.target

    @property
    def drafts(self) -> DraftModels:
        """The draft model, loaded by the first session that uses it."""
        return self.shared.drafts

    @property
    def turn(self) -> FairLock:
        """The lock that a thread holds to use the models, or state that sessions share."""
        return self.shared.turn

    @property
    def experience(self) -> Experience:
        """Measured costs of passes and acceptance of drafts on this device, updated by every session's scheduler."""
        return self.shared.experience

    @experience.setter
    def experience(self, experience: Experience) -> None:
        experience.costs.pad_to(self.target.card.widths, away=self.target.card.away_seconds)
        self.shared.experience = experience

    @property
    def draft(self) -> LanguageModel | None:
        """The draft model, loaded at its first use; None when the pack has none. Raises InputError once closed."""
        return self.turn.run(lambda: self._still_open().drafts.hold())  # noqa: PLW0108 (checked under the lock)

    def adapter(self, name: str) -> AdapterUse:
        """Return the pack's adapter of this name, loaded at its first use; it stays loaded until the pair is closed.

        Raises the errors of `PackAdapters.use`, and InputError once the pair is closed.
        """

        def chosen() -> AdapterUse:
            self._adapters = self._still_open()._adapters or self.shared.adapters().choice()
            found = self._adapters.choose(name, more=True)
            assert found is not None
            return found.use

        return self.turn.run(chosen)

    def session(self, options: SessionOptions | None = None, *, messages: Sequence[Message] = ()) -> Session:
        """Open a conversation, optionally after earlier messages.

        Raises InputError, CapabilityError or BudgetExceeded.
        """
        chosen = options or SessionOptions()
        if chosen.grammar is not None:
            self._compile(chosen.grammar)
        return self.turn.run(lambda: self._opened(chosen, messages))

    def drafter_names(self, options: SessionOptions) -> tuple[str, ...]:
        """Return the drafters that these options select. Raises the errors of `choose_drafters`."""
        return self.shared.choice(options).names

    def drafter_source(self, name: str) -> DrafterSource:
        """Return the pair's drafter source of this name. Raises InputError for an unknown name."""
        return self.shared.drafter_source(name)

    def add_drafter_source(self, source: DrafterSource) -> None:
        """Register a drafter that has no entry point, as if it had one; the pair closes its source."""
        self.shared.sources[source.name] = source

    def keep_experience(self, path: Path | None) -> None:
        """Load the scheduler's experience from `path`, and store it there again on close. None: it is not stored."""
        self.experience, self._experience_path = load_experience(path), path

    def keep_in_use(self, lock: Lock | None) -> None:
        """Release the lock that marks the pack as open when the pair is closed."""
        self._in_use = lock

    def save_experience(self) -> None:
        """Store the scheduler's experience now, if it has a path."""
        self.turn.run(self._save_experience)

    def close(self) -> None:
        """Close every session and model, store the scheduler's experience, and release every lease. Idempotent.

        Stops running answers in all threads and waits for them, like `Session.close`.
        """
        self._closed = True
        if self.turn.held:  # during a round: ask the answers to stop; the rest is done after the round
            for session in list(self._sessions):
                session.close()
        when_free(self._close_all)

    def _close_all(self) -> None:
        """Close the sessions, then everything else, even if one of them fails."""
        with ExitStack() as closing:
            closing.callback(self.turn.run, self._release)
            for session in self.turn.run(lambda: list(self._sessions)):
                closing.callback(session.close)

    def _still_open(self) -> "Pair":
        """Return this pair. Raises InputError once it is closed: a model loaded then would never be released."""
        if self._closed:
            raise InputError("this pair is closed: open the pack again with edgedecode.load")
        return self

    def _compile(self, grammar: "Grammar") -> None:
        """Compile a grammar without the lock: it takes up to half a second, and other rounds go on meanwhile."""
        with suppress(BudgetExceeded):  # the session is opened in another way, as far as there is one
            tokens = self.turn.run(lambda: self._still_open().shared.tokens_of_grammars())  # noqa: PLW0108 (the lock)
            tokens.compile(grammar)

    def _opened(self, options: SessionOptions, messages: Sequence[Message]) -> Session:
        shared = self._still_open().shared
        if options.details.switch is not None:
            from edgedecode.sessions.switch_choice import with_switch_rule

            options = with_switch_rule(options, self.manifest)
        try:
            session = Session(shared, options, messages=messages)
        except BudgetExceeded as error:
            smaller = shared.smaller_session(options) or shared.session_without_model(options)
            if smaller is None:
                raise shared.refused(error, options) from None
            session = Session(shared, smaller, messages=messages)
            if smaller != options:
                limit = self.budget.limit
                of = "" if limit is None else f" of {format_nbytes(limit.whole)} ({limit.name})"
                plain = ", without drafts," if smaller.drafter != options.drafter else ""
                notice(f"the context is {session.context} tokens{plain} to fit the memory budget{of}")
        self._sessions.add(session)
        return session

    def _save_experience(self) -> None:
        if self._experience_path is not None and self.experience.costs.tables:
            store_experience(self._experience_path, self.experience)

    def _release(self) -> None:
        with ExitStack() as closing:
            closing.callback(release_pages)  # last, after the models are freed
            closing.callback(self._process.release)
            self.shared.grammar_tokens = None
            if self.shared.grammar_lease is not None:
                closing.callback(self.shared.grammar_lease.release)
            closing.callback(self.drafts.close)
            closing.callback(self.target.close)
            for source in self.shared.sources.values():
                closing.callback(source.close)
            self._sessions.clear()
            if self._in_use is not None:
                closing.callback(self._in_use.release)
            self._save_experience()

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _footprint(self, process: Holder, sources: Mapping[str, DrafterSource]) -> PackFootprint | None:
        if not isinstance(self._engine, PlanningRuntime):
            return None
        return PackFootprint(
            self.manifest,
            self.root,
            tokenizer=self.tokenizer,
            engine=self._engine,
            process=[process],
            budget=self.budget,
            request=self._request,
            sources=sources,
        )

    def _check_placed(self, place: str, footprint: PackFootprint | None) -> None:
        """Raise if the draft cannot run where it was explicitly placed: else sessions would silently do without it."""
        if DRAFT not in self.manifest.models:
            raise InputError(f"{self.manifest.name} has no draft model to run on {place}: leave out --draft-on")
        if footprint is not None:
            footprint.check_draft()

    def _preferred(self) -> tuple[str, ...]:
        """Return the drafters with a draft model on an engine that cannot plan."""
        return preferred_drafters(
            self.manifest,
            runtime=draft_engine(self._engine),
            kv_type=self._kv_type or "",
            loading=self._loading,
            heads=self._serves_heads,
        )

    def _load_draft(self, role: str, needs: Sequence[str]) -> LanguageModel | None:
        if role == HEAD or DRAFT not in self.manifest.models:
            return self._load_head() if role == HEAD and self.manifest.head is not None else None
        entry = self.manifest.located(role)
        names = {self.manifest.models[DRAFT].weights, self.manifest.models[DRAFT].gguf}
        names |= {name for graph in entry.graphs.values() for name in graph.files}
        with opening(self.root, missing_seconds=0):  # answers wait meanwhile
            check_unchanged(self.manifest, self.root, names)
            if entry.own_tokenizer:
                return self._open_foreign(role, needs)
            if role == DRAFT and ADAPTERS in self._loading and self.manifest.has_draft_adapters:
                with suppress(BudgetExceeded, CapabilityError):  # then drafts without adapters
                    return self._open(role, needs=(*needs, ADAPTERS))
            return self._open(role, needs=needs)

    def _open_foreign(self, role: str, needs: Sequence[str]) -> LanguageModel:
        """Open a draft model with a tokenizer of its own. Raises CapabilityError if that changes texts."""
        from edgedecode.drafters.foreign_model import foreign_model  # late: few drafts have one

        closing = ExitStack()
        try:
            closing.callback(self.budget.reserve(*draft_tokenizer_holder(self.manifest)).release)
            tokenizer = draft_tokenizer(self.manifest, self.root, self.budget)
            model = self._open(role, needs=needs, vocabulary_size=tokenizer.size)
            closing.callback(model.close)
            return foreign_model(model, tokenizer=tokenizer, target=self.tokenizer, closed=closing.close)
        except BaseException:
            closing.close()
            raise

    def _load_head(self) -> LanguageModel:
        """Open the drafting head beside the target. Raises CapabilityError if the engine runs none."""
        check_heads(self._engine, self.provider)
        with opening(self.root, missing_seconds=0):
            check_unchanged(self.manifest, self.root, {self.manifest.located(HEAD).gguf})
            return self._open(HEAD)

    @property
    def _serves_heads(self) -> bool:
        return serves_heads(self._engine, self.provider)

    def _open(self, role: str, *, needs: Sequence[str] = (), vocabulary_size: int | None = None) -> LanguageModel:
        """Open a role's model with the KV type asked for; a draft that lacks it opens with its default.

        vocabulary_size: of a tokenizer that is not the pack's.
        """
        size = vocabulary_size or self.tokenizer.size
        if self._kv_type is None:
            return self._open_with(role, size, needs=needs)
        try:
            return self._open_with(role, size, needs=(*needs, f"kv:{self._kv_type}"))
        except CapabilityError:
            if role == "target":
                raise
            return self._open_with(role, size, needs=needs)

    def _open_with(self, role: str, vocabulary_size: int, *, needs: Sequence[str]) -> LanguageModel:
        head = self.manifest.head
        return self._engine.open(
            ModelRequest(
                self.manifest.located(role),
                self.root,
                role,
                vocabulary_size,
                self.budget,
                threads=self._threads,
                provider=self.provider,
                needs=(*needs, *role_needs(role, self._loading)),
                taps=head.taps if head is not None and role == "target" and self._serves_heads else (),
                beside=self.target if role == HEAD else None,
            )
        )
