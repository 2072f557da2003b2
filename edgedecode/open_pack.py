"""Opens a pack: checks it, chooses an engine, and makes the pair; or plans what a session of it would take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedecode.decoding.model import ModelCard
from edgedecode.engines.engine_choice import SLACK_NBYTES
from edgedecode.engines.engine_speeds import EngineRequest
from edgedecode.engines.interface import ADAPTERS, NO_MMAP, NO_REPACK, PlanningRuntime, Runtime
from edgedecode.engines.registry import find_runtime
from edgedecode.engines.selection import AUTO, chosen_engines, default_runtime, engine_version
from edgedecode.errors import BudgetExceeded, CapabilityError, EdgeDecodeError, InputError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.memory.footprint import Holder
from edgedecode.memory.limit import ASKED, Limit, limit_in_force
from edgedecode.memory.planner import Choice, MemoryPlan
from edgedecode.memory.pressure import free_memory
from edgedecode.memory.sizes import format_nbytes
from edgedecode.options import SessionOptions
from edgedecode.pack.gate import check_pack
from edgedecode.pack.hub import find_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import pack_tokenizer, process_holder, target_nbytes
from edgedecode.pair import Pair
from edgedecode.schedule.predicted_speed import PredictedSpeed, predicted_speed
from edgedecode.sessions.experience_file import experience_path, load_experience
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.user_notices import notice

__all__ = ["KV_TYPES", "SMALLER_KV", "PackPlan", "load", "plan"]

SMALLER_KV = "int8"
KV_TYPES = ("float32", "float16", SMALLER_KV)


@dataclass(frozen=True, slots=True)
class PackPlan:
    """The plan of a pack on an engine. limit: what is in force; None: nothing limits.

    least_with_int8: the smallest limit with `kv_type="int8"`, which is lossy and never chosen by itself; None where
    another type was asked for, or the pack has no such graph for this engine. speed: of the plan, speed_uncut: of one
    that no limit cuts; None where nothing was decoded here before.
    """

    pack: str
    engine: str
    limit: Limit | None
    memory: MemoryPlan
    least_with_int8: int | None = None
    speed: PredictedSpeed | None = None
    speed_uncut: PredictedSpeed | None = None


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
    adapters: bool = False,
    wrap: Callable[[Runtime], Runtime] | None = None,
) -> Pair:
    """Open a pack: a folder, a hub id, or None for the bundled one.

    memory: the budget in bytes, or text such as "800MB". In force is the least of it, the variable EDGEDECODE_MEMORY,
    the container's limit and the machine's memory.
    runtime: an installed engine's name, an engine of your own, or "auto": of those that can run the pack the one that
    is faster here, which is measured once; None: what the variable EDGEDECODE_RUNTIME says, else auto. threads: None
    chooses for this machine. verify: hash every file now (else only at the first opening, size and time afterwards).
    kv_type: how keys and values are kept, the draft's too where it can; None: as the engine does by itself. "int8"
    takes a quarter of float32's memory, and answers may differ slightly.
    context: the positions that sessions will plan for, which auto asks for under a budget; None: the usual number.
    mmap, repack: False has llama.cpp read weights rather than map their file, or use them as they lie in it rather than
    as its kernels want them: either takes them once in memory instead of twice; the first is as fast and is done by
    itself where a budget asks for it, the second is slower.
    adapters: the models are opened so that sessions may use the pack's adapters (`SessionOptions.adapter`).
    wrap: what is made of the engine before models are opened on it, a stopwatch for example.
    The draft model is loaded by the first session that uses it.
    Raises ManifestError, IncompatiblePair, BudgetExceeded, RuntimeUnavailable, CapabilityError for a KV type that the
    pack does not offer.
    """
    limit = _limit(memory)
    request = _request(
        provider=provider,
        threads=threads,
        kv_type=kv_type,
        context=context,
        mmap=mmap,
        repack=repack,
        adapters=adapters,
        limit=limit,
    )
    wanted = runtime if runtime is not None else default_runtime()
    root = find_pack(pack)
    try:
        with opening(root):
            return _open_pack(root, wanted, request, limit=limit, verify=verify, wrap=wrap, asked=runtime == AUTO)
    except BudgetExceeded as error:
        advice = f"{error.advice}; `edgedecode plan` lists what a session takes"
        raise BudgetExceeded(error.reason, advice, table=error.table, needed_nbytes=error.needed_nbytes) from None


def plan(  # noqa: PLR0913  (as `load`)
    pack: str | Path | None = None,
    options: SessionOptions | None = None,
    *,
    memory: int | str | None = None,
    runtime: str | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    kv_type: str | None = None,
    mmap: bool = True,
    repack: bool = True,
) -> PackPlan:
    """Plan a session of a pack, as `load` and `Pair.session` with these arguments would open it, and load nothing.

    It tells who takes how many bytes, and what is given up for the limit in force. "auto" takes the engine that is
    faster here, of those that can run the pack. Raises as `load`, but for BudgetExceeded: a plan says whether it fits;
    CapabilityError for an engine that does not tell what models take.
    """
    limit = _limit(memory)
    request = _request(
        provider=provider,
        threads=threads,
        kv_type=kv_type,
        mmap=mmap,
        repack=repack,
        adapters=options is not None and options.adapter is not None,
        limit=limit,
        context=None if options is None else options.context,
    )
    wanted = runtime if runtime is not None else default_runtime()
    root = find_pack(pack)
    with opening(root):
        manifest = check_pack(root, full=False)
        engine = None if wanted == AUTO else find_runtime(wanted)  # in the order of `load`: the process counts
        tokenizer = pack_tokenizer(manifest, root, Budget())
        engine = engine or find_runtime(chosen_engines(manifest, root, request, asked=False)[0])
        if not isinstance(engine, PlanningRuntime):
            raise CapabilityError(f"the engine {engine.name} does not tell what a model takes before it is loaded")
        footprint = _footprint(manifest, root, tokenizer=tokenizer, engine=engine, request=request)
        options = options or SessionOptions()
        fitted = footprint.fit(options, None if limit is None else limit.nbytes)
        smaller = None if kv_type is not None else footprint.least_with(SMALLER_KV, options)
        experience = load_experience(_experience_path(manifest, engine.name, request, footprint.card))

        def speed(choice: Choice) -> PredictedSpeed | None:
            half = choice.context // 2
            return predicted_speed(
                experience,
                choice.drafters,
                draft_max=choice.draft_max,
                context_tokens=half,
                adapter=choice.adapter,
            )

        uncut = footprint.fit(options, None).choice
        return PackPlan(manifest.name, engine.name, limit, fitted, smaller, speed(fitted.choice), speed(uncut))


def _request(
    *,
    provider: str,
    threads: int | None,
    kv_type: str | None,
    mmap: bool,
    repack: bool,
    adapters: bool,
    context: int | None,
    limit: Limit | None,
) -> EngineRequest:
    """Return how an engine is opened. Raises InputError."""
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"{threads} threads are out of range: 1 to 1024")
    if kv_type is not None and kv_type not in KV_TYPES:
        raise InputError(f"no KV type is called {kv_type!r}: it is {', '.join(KV_TYPES)}")
    asked = {NO_MMAP: not mmap, NO_REPACK: not repack, ADAPTERS: adapters}
    loading = tuple(need for need, wanted in asked.items() if wanted)
    memory = None if limit is None else limit.nbytes
    return EngineRequest(
        provider=provider, threads=threads, kv_type=kv_type, memory=memory, context=context, loading=loading
    )


def _limit(memory: int | str | None) -> Limit | None:
    """Return the limit in force, and tell the user where it is less than what was asked for."""
    limit = limit_in_force(memory)
    if memory is not None and limit is not None and limit.name != ASKED:
        asked = memory if isinstance(memory, str) else format_nbytes(memory)
        notice(f"the memory budget is {format_nbytes(limit.nbytes)}, not the {asked} asked for: {limit.name}")
    return limit


def _open_pack(
    root: Path,
    wanted: str | Runtime,
    request: EngineRequest,
    *,
    limit: Limit | None,
    verify: bool,
    wrap: Callable[[Runtime], Runtime] | None,
    asked: bool,
) -> Pair:
    """Open the pack at `root`; "auto": on the faster of its engines. asked: whether that was asked for."""
    manifest = check_pack(root, full=verify)
    _warn_if_short(manifest)
    engine = None if wanted == AUTO else find_runtime(wanted) if isinstance(wanted, str) else wanted
    tokenizer = pack_tokenizer(manifest, root, Budget(limit))

    def opened(engine: Runtime) -> Pair:
        try:
            pair = Pair(
                manifest,
                root,
                tokenizer=tokenizer,
                runtime=engine if wrap is None else wrap(engine),
                provider=request.provider,
                threads=request.threads,
                budget=Budget(limit),
                kv_type=request.kv_type,
                loading=request.loading,
            )
        except BudgetExceeded as error:
            raise _refused(
                error, manifest, root, tokenizer=tokenizer, engine=engine, request=request, limit=limit
            ) from None
        pair.keep_experience(_experience_path(manifest, engine.name, request, pair.target.card))
        return pair

    if engine is not None:
        return opened(engine)
    return _first_opened(chosen_engines(manifest, root, request, asked=asked), opened)


def _footprint(
    manifest: Manifest, root: Path, *, tokenizer: Tokenizer, engine: PlanningRuntime, request: EngineRequest
) -> PackFootprint:
    """Return what sessions of a pack take that is not open, beside what this process holds now."""
    return PackFootprint(
        manifest,
        root,
        tokenizer=tokenizer,
        engine=engine,
        process=[process_holder(tokenizer), Holder("variation between processes", SLACK_NBYTES)],
        budget=Budget(),
        provider=request.provider,
        threads=request.threads,
        kv_type=request.kv_type,
        loading=request.loading,
    )


def _refused(
    error: BudgetExceeded,
    manifest: Manifest,
    root: Path,
    *,
    tokenizer: Tokenizer,
    engine: Runtime,
    request: EngineRequest,
    limit: Limit | None,
) -> BudgetExceeded:
    """Return the refusal of a target that does not fit, which tells the smallest budgets of its sessions."""
    if limit is None or not isinstance(engine, PlanningRuntime):
        return error
    footprint = _footprint(manifest, root, tokenizer=tokenizer, engine=engine, request=request)
    try:
        plan = footprint.fit(SessionOptions(context=request.context), limit.nbytes)
    except EdgeDecodeError:  # what is wrong with the pack or the options, a pack that fits says
        return error
    return plan.refusal(error, limit, context_asked=request.context is not None)


def _experience_path(manifest: Manifest, engine: str, request: EngineRequest, card: ModelCard) -> Path | None:
    """Return where what is learnt of the pack on this engine is kept; None: nothing can be. card: the target's."""
    if (version := engine_version(engine)) is None:
        return None
    settings = (request.provider, card.threads, request.kv_type, card.kernels)
    return experience_path(manifest, engine=engine, version=version, settings=settings)


def _warn_if_short(manifest: Manifest) -> None:
    """Tell the user where other programs leave less memory than the target's weights take."""
    free, needed = free_memory(), target_nbytes(manifest)
    if free is not None and free.nbytes < needed:
        notice(
            f"only {format_nbytes(free.nbytes)} of memory are free here, the target's weights take "
            f"{format_nbytes(needed)}: close other programs, or expect it to be slow"
        )


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
