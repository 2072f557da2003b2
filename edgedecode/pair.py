"""A loaded pack: target, draft, tokenizer and budget, from which sessions are opened. Knows no engine by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from weakref import WeakSet

from edgedecode.decoding.model import AdapterUse, LanguageModel
from edgedecode.decoding.row_draw import RowDraw, row_draw_of
from edgedecode.decoding.verify import Rule
from edgedecode.draft_models import DraftModels, default_heads
from edgedecode.drafters.source import DrafterSource
from edgedecode.engines.engine_speeds import EngineRequest
from edgedecode.engines.identical_widths import IdenticalWidths
from edgedecode.engines.interface import NO_MMAP, NO_REPACK, Runtime
from edgedecode.engines.registry import find_drafter, find_runtime
from edgedecode.engines.selection import AUTO, chosen_engines, default_runtime, engine_version
from edgedecode.errors import (
    BudgetExceeded,
    CapabilityError,
    InputError,
    RuntimeUnavailable,
)
from edgedecode.experience_file import experience_path, load_experience, store_experience
from edgedecode.memory import Budget, parse_nbytes
from edgedecode.options import TREE, SessionOptions
from edgedecode.pack.adapters import PackAdapters
from edgedecode.pack.gate import check_pack
from edgedecode.pack.hub import find_pack
from edgedecode.pack.integrity import check_unchanged
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import PROCESS, pack_tokenizer, process_nbytes, target_nbytes
from edgedecode.schedule.experience import Experience
from edgedecode.session import Session
from edgedecode.text.messages import Message
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.turns import FairLock, when_free
from edgedecode.user_notices import notice

__all__ = ["KV_TYPES", "PROCESS", "Pair", "load"]

KV_TYPES = ("float32", "float16", "int8")
DEFAULT_DRAFT_MAX = 2
"""A fixed length that nobody chose: `--reproducible` may not choose by the clock."""
LONGEST_DRAFT = 16
"""What a scheduler may draft at most; half of it where a row of logits weighs hundreds of kilobytes."""
WIDE_VOCABULARY = 65536
SCHEDULED = ("model", "suffix")
"""The drafters that are chosen among by default; the first has the first right to memory.

The chained one is left out: it paid less than the better of its two parts.
"""
ALONE = ("suffix", "recycle")
"""The same where the pack has no draft model: beside one, recycled logits gave less than the host's work for them."""


def load(  # noqa: PLR0913  (what may be said of a pack)
    pack: str | Path | None = None,
    *,
    memory: int | str | None = None,
    runtime: str | Runtime | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    verify: bool = False,
    kv_type: str | None = None,
    context: int | None = None,
    mmap: bool = True,
    repack: bool = True,
    wrap: Callable[[Runtime], Runtime] | None = None,
) -> Pair:
    """Open a pack: a folder, a hub id, or None for the bundled one.

    memory: the budget in bytes, or text such as "800MB"; None: no limit. runtime: an installed engine's name, an engine
    of your own, or "auto": of those that can run the pack the one that is faster here, which is measured once; None:
    what the variable EDGEDECODE_RUNTIME says, else auto. threads: None chooses for this machine. verify: hash every
    file now (else only at the first opening, size and time afterwards). kv_type: how keys and values are kept, the
    draft's too where it can; None: as the engine does by itself. "int8" takes a quarter of float32's memory, and
    answers may differ slightly.
    context: the positions that sessions will plan for, which auto asks for under a budget; None: the usual number.
    mmap, repack: False has llama.cpp read weights rather than map their file, or use them as they lie in it rather than
    as its kernels want them: either takes them once in memory instead of twice; the first is as fast and is done by
    itself where a budget asks for it, the second is slower.
    wrap: what is made of the engine before models are opened on it, a stopwatch for example.
    The draft model is loaded by the first session that uses it.
    Raises ManifestError, IncompatiblePair, BudgetExceeded, RuntimeUnavailable, CapabilityError for a KV type that the
    pack does not offer.
    """
    limit = parse_nbytes(memory) if isinstance(memory, str) else memory
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"{threads} threads are out of range: 1 to 1024")
    if kv_type is not None and kv_type not in KV_TYPES:
        raise InputError(f"no KV type is called {kv_type!r}: it is {', '.join(KV_TYPES)}")
    wanted = runtime if runtime is not None else default_runtime()
    root = find_pack(pack)
    loading = tuple(need for need, done in ((NO_MMAP, mmap), (NO_REPACK, repack)) if not done)
    request = EngineRequest(
        provider=provider, threads=threads, kv_type=kv_type, memory=limit, context=context, loading=loading
    )
    with opening(root):
        return _open_pack(root, wanted, request, verify=verify, wrap=wrap, asked=runtime == AUTO)


def _open_pack(
    root: Path,
    wanted: str | Runtime,
    request: EngineRequest,
    *,
    verify: bool,
    wrap: Callable[[Runtime], Runtime] | None,
    asked: bool,
) -> Pair:
    """Open the pack at `root`; "auto": on the faster of its engines. asked: whether that was asked for."""
    manifest = check_pack(root, full=verify)
    engine = None if wanted == AUTO else find_runtime(wanted) if isinstance(wanted, str) else wanted
    tokenizer = pack_tokenizer(manifest, root, Budget(request.memory))

    def opened(engine: Runtime) -> Pair:
        pair = Pair(
            manifest,
            root,
            tokenizer=tokenizer,
            runtime=engine if wrap is None else wrap(engine),
            provider=request.provider,
            threads=request.threads,
            budget=Budget(request.memory),
            kv_type=request.kv_type,
            loading=request.loading,
        )
        if (version := engine_version(engine.name)) is not None:
            card = pair.target.card
            settings = (request.provider, card.threads, request.kv_type, card.kernels)
            pair.keep_experience(experience_path(manifest, engine=engine.name, version=version, settings=settings))
        return pair

    if engine is not None:
        return opened(engine)
    return _first_opened(chosen_engines(manifest, root, request, asked=asked), opened)


def _first_opened(names: Sequence[str], opened: Callable[[Runtime], Pair]) -> Pair:
    """Open the pair on the first of these engines that takes it; of each that does not, tell why."""
    name, *others = names
    try:
        return opened(find_runtime(name))
    except (BudgetExceeded, CapabilityError, RuntimeUnavailable) as error:
        if not others:
            raise
        notice(f"{name} cannot run this pack here ({error.reason}); trying {others[0]}")
    return _first_opened(others, opened)


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
        self.manifest = manifest
        self.root = root
        self.budget = budget
        self.runtime = runtime.name
        self._engine = runtime
        self.provider, self._threads, self._kv_type, self._loading = provider, threads, kv_type, loading
        self._heads = default_heads(manifest.models.get("draft"), runtime=runtime.name)
        self.drafts = DraftModels(self._load_draft if "draft" in manifest.models else None, likely=self._heads)
        """The draft model, loaded by the first session that uses it."""
        self._sources: dict[str, DrafterSource] = {}
        self.experience = Experience()
        """What passes cost here and drafts are worth: every session's scheduler learns in it."""
        self._experience_path: Path | None = None
        self.identical_widths: dict[str, IdenticalWidths] = {}
        """By adapter: the pass widths that round alike here, once a reproducible session asked."""
        self._sessions: WeakSet[Session] = WeakSet()
        self.turn = FairLock()
        """Held by whoever uses the models, or what sessions share."""
        self._closed = False
        self.tokenizer = tokenizer
        self._process = budget.reserve(
            PROCESS,
            process_nbytes(budget) + tokenizer.cache_nbytes,
            fixed=True,
            following=target_nbytes(manifest),
        )
        try:
            self.target = self._open("target")
        except BaseException:
            self._process.release()
            raise
        self._adapters = PackAdapters(manifest, root, target=self.target, runtime=runtime.name)

    @property
    def draft(self) -> LanguageModel | None:
        """The draft model, loaded at its first use; None when the pack has none. Raises InputError once closed."""
        return self.turn.run(lambda: self._still_open().drafts.offering())  # noqa: PLW0108 (asked in its turn)

    def adapter(self, name: str) -> AdapterUse:
        """Return the pack's adapter of this name, loaded at its first use.

        Raises as `PackAdapters.use`, and InputError once the pair is closed.
        """
        return self.turn.run(lambda: self._still_open()._adapters.use(name))

    def session(self, options: SessionOptions | None = None, *, messages: Sequence[Message] = ()) -> Session:
        """Open a conversation, perhaps from a transcript. Raises InputError, CapabilityError or BudgetExceeded."""
        return self.turn.run(lambda: self._opened(options or SessionOptions(), messages))

    def drafter_names(self, options: SessionOptions) -> tuple[str, ...]:
        """Return the drafters these options mean: none for length 0, the one that is named, else all that may pay."""
        if not self._drops_drafts(options) or options.draft_max == 0 or options.drafter == "none":
            return ()
        if options.drafter is not None:
            return (options.drafter,)
        has_draft = "draft" in self.manifest.models
        branching = options.tree and self.target.card.tree
        if options.fixed or options.rule is Rule.RATIO:
            if branching:
                return (TREE,) if has_draft else ("recycle",)
            return ("model",) if has_draft else ("ngram",)
        if not has_draft:
            return ALONE
        return (*self._heads, *SCHEDULED, *(("recycle", TREE) if branching else ()))

    def draft_max(self, options: SessionOptions) -> int:
        """Return the longest draft these options mean; a fixed length where `options.fixed`."""
        if not self.drafter_names(options):
            return 0
        if options.draft_max is not None:
            return options.draft_max
        if options.fixed:
            return DEFAULT_DRAFT_MAX
        return LONGEST_DRAFT if self.target.card.rows <= WIDE_VOCABULARY else LONGEST_DRAFT // 2

    def drafter_source(self, name: str) -> DrafterSource:
        """Return the pair's one source of this name. Raises InputError for an unknown name."""
        if name not in self._sources:
            self._sources[name] = find_drafter(name)
        return self._sources[name]

    def row_draw(self) -> RowDraw:
        """Return a new helper that draws tokens from rows of logits, for one session."""
        return row_draw_of(self._engine)

    def add_drafter_source(self, source: DrafterSource) -> None:
        """Let sessions name a drafter that no entry point names; the pair closes its source."""
        self._sources[source.name] = source

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
        session = Session(self._still_open(), options, messages=messages)
        self._sessions.add(session)
        return session

    def _save_experience(self) -> None:
        if self._experience_path is not None and self.experience.costs.tables:
            store_experience(self._experience_path, self.experience)

    def _give_back(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._process.release)
            closing.callback(self.drafts.close)
            closing.callback(self.target.close)
            for source in self._sources.values():
                closing.callback(source.close)
            self._sessions.clear()
            self._save_experience()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _drops_drafts(self, options: SessionOptions) -> bool:
        """Tell whether the target can drop a rejected draft. Raises CapabilityError where it must and cannot."""
        if self.target.card.rollback:
            return True
        drafts = options.drafter != "none" and (options.drafter is not None or options.draft_max)
        if drafts or (options.reproducible and not self.target.card.row_invariant):
            wanted = "--reproducible pads its passes with rows" if options.reproducible else "drafts are rows"
            raise CapabilityError(
                f"{wanted} that this target's recurrent layers cannot drop again: decode it plainly (--drafter none)"
            )
        return False

    def _load_draft(self, needs: Sequence[str]) -> LanguageModel:
        entry = self.manifest.models["draft"]
        graphs = (graph for graph in entry.graphs.values() if needs or "trim" not in graph.capabilities)
        names = {entry.weights, entry.gguf, *(graph.file for graph in graphs)}
        with opening(self.root):
            check_unchanged(self.manifest, self.root, names)
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
        entry = self.manifest.located(role)
        if self.provider != "cpu" and self.provider not in {device.provider for device in self._engine.devices()}:
            known = ", ".join(device.provider for device in self._engine.devices())
            raise CapabilityError(f"the runtime {self.runtime!r} has no provider {self.provider!r}; it has: {known}")
        return self._engine.open(
            entry,
            self.root,
            name=role,
            vocabulary_size=self.tokenizer.size,
            budget=self.budget,
            threads=self._threads,
            provider=self.provider,
            needs=(*needs, *self._loading),
        )
