"""Opens a pack: checks it, chooses an engine, and creates the pair."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.decoding.model import ModelCard
from edgedecode.engines.interface import (
    ADAPTERS,
    HIDDEN_ROWS,
    NO_MMAP,
    NO_REPACK,
    SQUARES,
    PlanningRuntime,
    Runtime,
    draft_engine,
)
from edgedecode.engines.registry import find_runtime, find_targets
from edgedecode.engines.selection import (
    AUTO,
    EngineRequest,
    default_runtime,
    engine_version,
    first_engine,
    other_engines,
)
from edgedecode.errors import BudgetExceeded, CapabilityError, EdgeDecodeError, InputError, RuntimeUnavailable
from edgedecode.library.find import find_pack
from edgedecode.library.prepared import hold_in_use
from edgedecode.memory.budget import PROCESS, VARIATION, VARIATION_NBYTES, Budget, Holder, SharedBudget
from edgedecode.memory.limit import ASKED, Limit, limit_in_force
from edgedecode.memory.pressure import free_memory
from edgedecode.memory.process_memory import held_nbytes
from edgedecode.memory.sizes import format_nbytes
from edgedecode.options import SessionOptions
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import pack_tokenizer, process_holder, target_nbytes
from edgedecode.pair import Pair
from edgedecode.sessions.experience_file import experience_path
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.user_notices import notice

if TYPE_CHECKING:  # most targets are on this device
    from edgedecode.engines.target_server import TargetServer

__all__ = ["KV_TYPES", "SMALLER_KV", "LoadOptions", "load"]

SMALLER_KV = "int8"
KV_TYPES = ("float32", "float16", SMALLER_KV)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The rarer options of `load` and `plan`.

    provider: an execution provider or device of the engine (`edgedecode devices`). draft_on: run the draft model on
    another engine or provider than the target: ENGINE or ENGINE:PROVIDER, such as "onnx" for a target on llama.cpp, or
    "onnx:webgpu". context: the positions that sessions will plan for, for auto's choice under a budget; None: the
    default number. verify: hash every file now (default: hash at the first opening, compare size and time afterwards;
    `plan` hashes none).
    mmap, repack: for llama.cpp. mmap=False reads the weights instead of mapping their file; repack=False uses them in
    the file's layout instead of its kernels'. Either keeps the weights in memory once instead of twice. Reading is as
    fast, and is chosen automatically if a budget requires it; the file's layout is slower.
    squares: the target also sums the squares of its matrices' inputs (`SquaresModel`): a GGUF file on ONNX Runtime.
    hidden: it also gives its hidden states (`HiddenModel`): on our kernels.
    server: the target runs there, and the pack's target drafts here, or a draft with another tokenizer; its head and
    adapters are not used.
    """

    provider: str = "cpu"
    draft_on: str | None = None
    context: int | None = None
    verify: bool = False
    mmap: bool = True
    repack: bool = True
    squares: bool = False
    hidden: bool = False
    server: "TargetServer | None" = None

    def __post_init__(self) -> None:
        kinds = {"provider": str, "draft_on": str, "context": int}
        kinds |= dict.fromkeys(("verify", "mmap", "repack", "squares", "hidden"), bool)
        for name, kind in kinds.items():
            value, optional = getattr(self, name), name in ("draft_on", "context")
            if not isinstance(value, kind) and not (optional and value is None):
                raise InputError(f"{name} is {value!r}: give a value of the type {kind.__name__}")
        if self.server is not None and self.draft_on is not None:
            raise InputError("the target is on a server, and the draft on the pack's engine: leave out draft_on")
        if self.context is not None and self.context < 1:
            raise InputError(f"context {self.context} is too small: the minimum is 1")


def load(
    pack: str | Path | None = None,
    *,
    draft: str | Path | None = None,
    memory: int | str | SharedBudget | None = None,
    runtime: str | Runtime | None = None,
    threads: int | None = None,
    kv_type: str | None = None,
    adapters: bool = False,
    options: LoadOptions | None = None,
) -> Pair:
    """Open a model: the folder of a pack, a GGUF file, a name of `edgedecode list`, a hub id, or None: the bundled one.

    draft: the draft model, likewise; both are then GGUF files.
    memory: the budget in bytes, or text such as "800MB". The limit in force is the smallest of this, the variable
    EDGEDECODE_MEMORY, the container's limit and the machine's memory. A `SharedBudget` holds several packs.
    runtime: an installed engine's name, a `Runtime` object, or "auto": ONNX Runtime where it can run the pack, else
    llama.cpp; None: the variable EDGEDECODE_RUNTIME, else auto. threads: None: chosen for this machine.
    kv_type: the KV cache's type, also the draft's if it has that type; None: the engine's default. "int8" takes a
    quarter of float32's memory, and answers may differ slightly.
    adapters: open the models so that sessions may use the pack's adapters (`SessionOptions.adapter`).
    The draft model is loaded by the first session that uses it.
    Raises ManifestError, IncompatiblePair, BudgetExceeded, RuntimeUnavailable, CapabilityError for a KV type that the
    pack does not offer.
    """
    rare, shared = rarer(options), memory if isinstance(memory, SharedBudget) else None
    limit = limit_asked(memory) if not isinstance(memory, SharedBudget) else memory.whole
    place = placing(rare)
    request = engine_request(threads, kv_type, adapters, rare)
    wanted = runtime if runtime is not None else default_runtime()
    root = find_pack(pack, draft)
    try:
        with opening(root):
            manifest = check_pack(root, full=rare.verify)
            _warn_if_short(manifest)
            engine = named_engine(wanted)
            reading = Budget(limit) if shared is None else shared.part()
            tokenizer = pack_tokenizer(manifest, root, reading)
            if rare.server is not None:
                manifest, place = _with_server(rare.server, manifest, tokenizer)
            known = CheckedPack(manifest, root, tokenizer, limit, place, shared)
            if engine is not None:
                return known.open(engine, request)
            first = first_engine(manifest, root, request, asked=runtime == AUTO)
            others = partial(other_engines, manifest, root, request, first=first)
            return _open_on_first(first, lambda engine: known.open(engine, request), others=others, shared=shared)
    except BudgetExceeded as error:
        advice = f"{error.advice}; `edgedecode plan` lists what a session needs"
        raise BudgetExceeded(error.reason, advice, table=error.table, needed_nbytes=error.needed_nbytes) from None


@dataclass(frozen=True, slots=True)
class CheckedPack:
    """A pack that was checked, and the limit for it. place: puts the draft on its engine.

    shared: the budget that it is opened in; None: one of its own.
    """

    manifest: Manifest
    root: Path
    tokenizer: Tokenizer
    limit: Limit | None
    place: Callable[[Runtime], Runtime]
    shared: SharedBudget | None = None

    def open(self, engine: Runtime, request: EngineRequest) -> Pair:
        """Open the pack on an engine."""
        engine, budget = self.place(engine), Budget(self.limit) if self.shared is None else self.shared.part()
        try:
            pair = Pair(
                self.manifest, self.root, tokenizer=self.tokenizer, runtime=engine, budget=budget, request=request
            )
        except BudgetExceeded as error:
            raise self._refused(error, engine, request) from None
        pair.keep_in_use(hold_in_use(self.root))
        pair.keep_experience(self.experience_path_of(engine, request, pair.target.card))
        return pair

    def footprint(self, engine: PlanningRuntime, request: EngineRequest) -> PackFootprint:
        """Return the footprint of sessions, in addition to this process's memory now."""
        process = [
            process_holder(self.tokenizer, self.manifest, Budget(shared=self.shared)),
            Holder(VARIATION, VARIATION_NBYTES),
        ]
        if self.shared is not None:
            process.append(Holder(PROCESS, self.shared.program_nbytes))
        return PackFootprint(
            self.manifest,
            self.root,
            tokenizer=self.tokenizer,
            engine=engine,
            process=process,
            budget=Budget(),
            request=request,
        )

    def _refused(self, error: BudgetExceeded, engine: Runtime, request: EngineRequest) -> BudgetExceeded:
        """Return the refusal of a target that does not fit, with the smallest sufficient budgets of its sessions."""
        if self.limit is None or not isinstance(engine, PlanningRuntime):
            return error
        try:
            session = SessionOptions(context=request.context)
            plan = self.footprint(engine, request).fit(session, self.limit.nbytes)
        except EdgeDecodeError:  # the budget error comes first; this one is reported once the pack fits
            return error
        return plan.refusal(error, self.limit, context_asked=request.context is not None)

    def experience_path_of(self, engine: object, request: EngineRequest, card: ModelCard) -> Path | None:
        """Return the file of the scheduler's experience with the pack on this engine; None: it is not kept.

        card: the target's.
        """
        name, place = str(getattr(engine, "name", "")), getattr(engine, "draft_place", None)
        if (version := engine_version(name)) is None:
            return None
        placed = () if place is None else (place, engine_version(draft_engine(engine)))
        settings = (request.provider, card.threads, request.kv_type, card.kernels, *placed)
        return experience_path(self.manifest, engine=name, version=version, settings=settings)


def named_engine(wanted: str | Runtime) -> Runtime | None:
    """Return the engine of this name; None for auto."""
    return None if wanted == AUTO else find_runtime(wanted) if isinstance(wanted, str) else wanted


def placing(rare: LoadOptions) -> Callable[[Runtime], Runtime]:
    """Return a function that puts the draft beside the target's engine. Raises InputError for an unknown place."""
    if rare.draft_on is None:
        return lambda engine: engine
    from edgedecode.engines.placed import Place, place_draft

    where = Place.parse(rare.draft_on)
    return lambda engine: place_draft(engine, where)


def _with_server(
    server: "TargetServer", manifest: Manifest, tokenizer: Tokenizer
) -> tuple[Manifest, Callable[[Runtime], Runtime]]:
    """Return the manifest with the pack's target as the draft, and a function that puts the target on the server."""
    from edgedecode.engines.target_server import with_device_draft

    make = find_targets()
    return with_device_draft(manifest), lambda engine: make(server, engine, tokenizer, manifest.end_ids)


def rarer(options: LoadOptions | None) -> LoadOptions:
    if options is not None and not isinstance(options, LoadOptions):
        raise InputError(f"options is {options!r}: give LoadOptions(...)")
    return options or LoadOptions()


def engine_request(threads: int | None, kv_type: str | None, adapters: bool, rare: LoadOptions) -> EngineRequest:
    """Check the options and return how to open an engine. Raises InputError."""
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"{threads} threads are out of range: 1 to 1024")
    if kv_type is not None and kv_type not in KV_TYPES:
        raise InputError(f"unknown KV type {kv_type!r}: use one of {', '.join(KV_TYPES)}")
    asked = {NO_MMAP: not rare.mmap, NO_REPACK: not rare.repack, ADAPTERS: adapters, SQUARES: rare.squares}
    asked |= {HIDDEN_ROWS: rare.hidden}
    loading = tuple(need for need, wanted in asked.items() if wanted)
    return EngineRequest(rare.provider, threads=threads, kv_type=kv_type, context=rare.context, loading=loading)


def limit_asked(memory: int | str | None) -> Limit | None:
    """Return the limit in force; notify the user if it is lower than the one asked for."""
    limit = limit_in_force(memory)
    if memory is not None and limit is not None and limit.name != ASKED:
        asked = memory if isinstance(memory, str) else format_nbytes(memory)
        notice(f"the memory budget is {format_nbytes(limit.nbytes)}, not the {asked} asked for: {limit.name}")
    return limit


def _warn_if_short(manifest: Manifest) -> None:
    """Notify the user if less memory is free than the target's weights take."""
    free, needed = free_memory(), target_nbytes(manifest)
    if free is not None and free.nbytes < needed:
        notice(
            f"only {format_nbytes(free.nbytes)} of memory is free, and the target's weights take "
            f"{format_nbytes(needed)}: close other programs, or expect slow answers"
        )


def _open_on_first(
    name: str,
    open_on: Callable[[Runtime], Pair],
    *,
    others: Callable[[], Sequence[str]],
    shared: SharedBudget | None = None,
) -> Pair:
    """Open the pair on this engine, or the first of the others that can; notify the user of each failure's reason."""
    try:
        return open_on(_imported(name, shared))
    except (BudgetExceeded, CapabilityError, RuntimeUnavailable) as error:
        if not (left := others()):
            raise
        notice(f"{name} cannot run this pack here ({error.reason}); trying {left[0]}")
    return _open_on_first(left[0], open_on, others=lambda: left[1:], shared=shared)


def _imported(name: str, shared: SharedBudget | None) -> Runtime:
    """Return an engine; beside open packs, what its import takes is leased."""
    before = held_nbytes() or 0
    engine = find_runtime(name)
    if shared is not None:
        shared.count_import(name, max(0, (held_nbytes() or 0) - before))
    return engine
