"""A loaded pack: target, draft, tokenizer and budget, from which sessions are opened."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from weakref import WeakSet

from edgedecode.adapters.pack_adapters import PackAdapters
from edgedecode.decoding.model import AdapterUse, LanguageModel
from edgedecode.drafters.source import DrafterSource
from edgedecode.engines.interface import ADAPTERS, ModelRequest, PlanningRuntime, Runtime, role_needs
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError
from edgedecode.memory.budget import Budget
from edgedecode.memory.footprint import Holder
from edgedecode.memory.process_memory import release_pages
from edgedecode.memory.sizes import format_nbytes
from edgedecode.options import SessionOptions
from edgedecode.pack.integrity import check_unchanged
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import PROCESS, process_holder, target_nbytes
from edgedecode.schedule.experience import Experience
from edgedecode.sessions.draft_models import DraftModels, default_heads
from edgedecode.sessions.experience_file import load_experience, store_experience
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.session import Session
from edgedecode.text.messages import Message
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.turns import FairLock, when_free
from edgedecode.user_notices import notice

__all__ = ["PROCESS", "Pair"]


class Pair:
    """A target, its optional draft, and everything that sessions share. Use it as a context manager, or `close` it.

    Several threads may use it and its sessions at once. Models work for one of them at a time: `turn` is held for a
    round of a session's decoding (drafts, pass, verification), for a piece of its prompt, while a session is opened or
    closed, and never while a caller looks at a chunk; threads that wait get it in the order of asking. Direct calls of
    a model's `forward` are not locked: wrap them in `pair.turn.run(...)`.
    """

    def __init__(  # noqa: PLR0913  (what may be said of a pack)
        self,
        manifest: Manifest,
        root: Path,
        *,
        tokenizer: Tokenizer,
        runtime: Runtime,
        budget: Budget,
        provider: str = "cpu",
        threads: int | None = None,
        kv_type: str | None = None,
        loading: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.runtime = runtime.name
        self._engine = runtime
        self.manifest, self.tokenizer, self.budget, self.provider = manifest, tokenizer, budget, provider
        self._threads, self._kv_type, self._loading = threads, kv_type, loading
        self._experience_path: Path | None = None
        self._sessions: WeakSet[Session] = WeakSet()
        self._closed = False
        process = process_holder(tokenizer, budget)
        self._process = budget.reserve(*process, fixed=True, following=target_nbytes(manifest))
        try:
            target = self._open("target")
        except BaseException:
            self._process.release()
            raise
        footprint, turn = self._footprint(process), FairLock()
        heads = default_heads(manifest.models.get("draft"), runtime=runtime.name)
        heads = heads if footprint is None else footprint.heads
        adapters = PackAdapters(manifest, root, model=target, runtime=runtime.name, budget=budget, turn=turn)
        self.shared = Resources(
            manifest=manifest,
            tokenizer=tokenizer,
            budget=budget,
            engine=runtime,
            provider=provider,
            target=target,
            drafts=DraftModels(
                self._load_draft if "draft" in manifest.models else None, likely=heads, adapters=adapters.of_draft
            ),
            footprint=footprint,
            heads=heads,
            adapters=adapters,
            turn=turn,
        )
        """What its sessions decode with."""
        self._adapters = self.shared.adapters.choice()

    @property
    def target(self) -> LanguageModel:
        return self.shared.target

    @property
    def drafts(self) -> DraftModels:
        """The draft model, loaded by the first session that uses it."""
        return self.shared.drafts

    @property
    def turn(self) -> FairLock:
        """Held by whoever uses the models, or what sessions share."""
        return self.shared.turn

    @property
    def experience(self) -> Experience:
        """What passes cost here and what drafts gained: every session's scheduler learns in it."""
        return self.shared.experience

    @experience.setter
    def experience(self, experience: Experience) -> None:
        self.shared.experience = experience

    @property
    def draft(self) -> LanguageModel | None:
        """The draft model, loaded at its first use; None when the pack has none. Raises InputError once closed."""
        return self.turn.run(lambda: self._still_open().drafts.offering())  # noqa: PLW0108 (asked in its turn)

    def adapter(self, name: str) -> AdapterUse:
        """Return the pack's adapter of this name, loaded at its first use; it stays until the pair is closed.

        Raises as `PackAdapters.use`, and InputError once the pair is closed.
        """
        chosen = self.turn.run(lambda: self._still_open()._adapters.choose(name, more=True))
        assert chosen is not None
        return chosen.use

    def session(self, options: SessionOptions | None = None, *, messages: Sequence[Message] = ()) -> Session:
        """Open a conversation, perhaps from a transcript. Raises InputError, CapabilityError or BudgetExceeded."""
        return self.turn.run(lambda: self._opened(options or SessionOptions(), messages))

    def drafter_names(self, options: SessionOptions) -> tuple[str, ...]:
        """Return the drafters these options mean. Raises as `choose_drafters`."""
        return self.shared.choice(options).names

    def drafter_source(self, name: str) -> DrafterSource:
        """Return the pair's one source of this name. Raises InputError for an unknown name."""
        return self.shared.drafter_source(name)

    def add_drafter_source(self, source: DrafterSource) -> None:
        """Let sessions name a drafter that no entry point names; the pair closes its source."""
        self.shared.sources[source.name] = source

    def keep_experience(self, path: Path | None) -> None:
        """Resume from the experience stored at `path`; store it there again on close."""
        self.experience, self._experience_path = load_experience(path), path

    def save_experience(self) -> None:
        """Store now what was learnt, where it is to be stored at all."""
        self.turn.run(self._save_experience)

    def close(self) -> None:
        """Close every session and model, keep what was learnt, and release every lease. Idempotent.

        Running answers are stopped, in whichever threads, and waited for, as by `Session.close`.
        """
        self._closed = True
        if self.turn.held:  # in the middle of a round: the answers are told to stop, the rest waits for its end
            for session in list(self._sessions):
                session.close()
        when_free(self._close_all)

    def _close_all(self) -> None:
        """Close the sessions, then everything else, whichever of them fails."""
        with ExitStack() as closing:
            closing.callback(self.turn.run, self._give_back)
            for session in self.turn.run(lambda: list(self._sessions)):
                closing.callback(session.close)

    def _still_open(self) -> Pair:
        """Return this pair. Raises InputError once it is closed: what is loaded then would stay in memory."""
        if self._closed:
            raise InputError("this pair is closed: open the pack again with edgedecode.load")
        return self

    def _opened(self, options: SessionOptions, messages: Sequence[Message]) -> Session:
        shared = self._still_open().shared
        try:
            session = Session(shared, options, messages=messages)
        except BudgetExceeded as error:
            smaller = shared.smaller_session(options) or shared.session_without_model(options)
            if smaller is None:
                raise shared.refused(error, options) from None
            session = Session(shared, smaller, messages=messages)
            if smaller != options:
                limit = self.budget.limit
                of = "" if limit is None else f" of {format_nbytes(limit.nbytes)} ({limit.name})"
                plain = ", without drafts," if smaller.drafter != options.drafter else ""
                notice(f"the context is {session.context} tokens{plain} to fit the memory budget{of}")
        self._sessions.add(session)
        return session

    def _save_experience(self) -> None:
        if self._experience_path is not None and self.experience.costs.tables:
            store_experience(self._experience_path, self.experience)

    def _give_back(self) -> None:
        with ExitStack() as closing:
            closing.callback(release_pages)  # last: of what the models took
            closing.callback(self._process.release)
            closing.callback(self.drafts.close)
            closing.callback(self.target.close)
            for source in self.shared.sources.values():
                closing.callback(source.close)
            self._sessions.clear()
            self._save_experience()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _footprint(self, process: Holder) -> PackFootprint | None:
        if not isinstance(self._engine, PlanningRuntime):
            return None
        return PackFootprint(
            self.manifest,
            self.root,
            tokenizer=self.tokenizer,
            engine=self._engine,
            process=[process],
            budget=self.budget,
            provider=self.provider,
            threads=self._threads,
            kv_type=self._kv_type,
            loading=self._loading,
        )

    def _load_draft(self, needs: Sequence[str]) -> LanguageModel:
        entry = self.manifest.models["draft"]
        graphs = (graph for graph in entry.graphs.values() if needs or "trim" not in graph.capabilities)
        names = {entry.weights, entry.gguf, *(graph.file for graph in graphs)}
        with opening(self.root):
            check_unchanged(self.manifest, self.root, names)
            if ADAPTERS in self._loading and self.manifest.has_draft_adapters:
                with suppress(BudgetExceeded, CapabilityError):  # then it drafts without them
                    return self._open("draft", needs=(*needs, ADAPTERS))
            return self._open("draft", needs=needs)

    def _open(self, role: str, *, needs: Sequence[str] = ()) -> LanguageModel:
        """Open a role's model with the KV type asked for; nobody asked it of a draft, which may have another only."""
        if self._kv_type is None:
            return self._open_with(role, needs=needs)
        try:
            return self._open_with(role, needs=(*needs, f"kv:{self._kv_type}"))
        except CapabilityError:
            if role == "target":
                raise
            return self._open_with(role, needs=needs)

    def _open_with(self, role: str, *, needs: Sequence[str]) -> LanguageModel:
        if self.provider != "cpu" and self.provider not in {device.provider for device in self._engine.devices()}:
            known = ", ".join(device.provider for device in self._engine.devices())
            raise CapabilityError(f"the runtime {self.runtime!r} has no provider {self.provider!r}; it has: {known}")
        return self._engine.open(
            ModelRequest(
                self.manifest.located(role),
                self.root,
                role,
                self.tokenizer.size,
                self.budget,
                threads=self._threads,
                provider=self.provider,
                needs=(*needs, *role_needs(role, self._loading)),
            )
        )
