"""Opens a pack: checks it, chooses an engine, and creates the pair. Also plans a session's memory without loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from edgedecode.decoding.model import ModelCard
from edgedecode.engines.interface import ADAPTERS, NO_MMAP, NO_REPACK, PlanningRuntime, Runtime, draft_engine
from edgedecode.engines.registry import find_runtime
from edgedecode.engines.selection import (
    AUTO,
    EngineRequest,
    default_runtime,
    engine_version,
    first_engine,
    other_engines,
)
from edgedecode.engines.wrappers.kept_placement import kept_placement
from edgedecode.engines.wrappers.placed import PROCESSOR, Place, place_draft
from edgedecode.errors import BudgetExceeded, CapabilityError, EdgeDecodeError, InputError, RuntimeUnavailable
from edgedecode.library.find import find_pack
from edgedecode.library.prepared import hold_in_use
from edgedecode.memory.budget import Budget
from edgedecode.memory.footprint import VARIATION, Holder
from edgedecode.memory.limit import ASKED, Limit, limit_in_force
from edgedecode.memory.planner import Choice, MemoryPlan
from edgedecode.memory.pressure import free_memory
from edgedecode.memory.sizes import format_nbytes
from edgedecode.options import SessionOptions
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import pack_tokenizer, process_holder, target_nbytes
from edgedecode.pair import Pair
from edgedecode.schedule.predicted_speed import PredictedSpeed, predicted_speed
from edgedecode.sessions.experience_file import experience_path, load_experience
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.sessions.switch_choice import with_switch_rule
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.user_notices import notice

__all__ = ["KV_TYPES", "SMALLER_KV", "PackPlan", "load", "plan"]

T = TypeVar("T")

SMALLER_KV = "int8"
KV_TYPES = ("float32", "float16", SMALLER_KV)
VARIATION_NBYTES = 2 * 2**20
"""Growth of a process before a model is open, in addition to its leases."""


@dataclass(frozen=True, slots=True)
class PackPlan:
    """The plan of a session of a pack on an engine. limit: the memory limit in force; None: no limit.

    least_with_int8: the smallest sufficient limit with `kv_type="int8"`, which is lossy and never chosen automatically;
    None: a KV type was asked for, or the pack has no such graph for this engine. speed: the plan's predicted speed.
    speed_uncut: the predicted speed without a limit. Both are None if no session has run here before.
    """

    pack: str
    engine: str
    limit: Limit | None
    memory: MemoryPlan
    least_with_int8: int | None = None
    speed: PredictedSpeed | None = None
    speed_uncut: PredictedSpeed | None = None


def load(  # noqa: PLR0913  (the options of a pack)
    pack: str | Path | None = None,
    *,
    draft: str | Path | None = None,
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
    draft_on: str | None = None,
    wrap: Callable[[Runtime], Runtime] | None = None,
) -> Pair:
    """Open a model: the folder of a pack, a GGUF file, a name of `edgedecode list`, a hub id, or None: the bundled one.

    draft: the draft model, likewise; both are then GGUF files with the same tokenizer.
    memory: the budget in bytes, or text such as "800MB". The limit in force is the smallest of this, the variable
    EDGEDECODE_MEMORY, the container's limit and the machine's memory.
    runtime: an installed engine's name, a `Runtime` object, or "auto": ONNX Runtime where it can run the pack, else
    llama.cpp; None: the variable EDGEDECODE_RUNTIME, else auto. threads: None: chosen for this machine.
    verify: hash every file now (default: hash at the first opening, compare size and time afterwards).
    kv_type: the KV cache's type, also the draft's if it has that type; None: the engine's default. "int8" takes a
    quarter of float32's memory, and answers may differ slightly.
    context: the positions that sessions will plan for, for auto's choice under a budget; None: the default number.
    mmap, repack: for llama.cpp. mmap=False reads the weights instead of mapping their file; repack=False uses them in
    the file's layout instead of its kernels'. Either keeps the weights in memory once instead of twice. Reading is as
    fast, and is chosen automatically if a budget requires it; the file's layout is slower.
    adapters: open the models so that sessions may use the pack's adapters (`SessionOptions.adapter`).
    draft_on: run the draft model on another engine or provider than the target: ENGINE or ENGINE:PROVIDER, such as
    "onnx" for a target on llama.cpp, or "onnx:webgpu".
    wrap: called with the engine before models are opened on it; returns the engine to use, for example a timed one.
    The draft model is loaded by the first session that uses it.
    Raises ManifestError, IncompatiblePair, BudgetExceeded, RuntimeUnavailable, CapabilityError for a KV type that the
    pack does not offer.
    """
    limit = _limit(memory)
    wrap = _wrapped(wrap, draft_on=draft_on)
    request = _request(
        provider=provider,
        threads=threads,
        kv_type=kv_type,
        context=context,
        mmap=mmap,
        repack=repack,
        adapters=adapters,
    )
    wanted = runtime if runtime is not None else default_runtime()
    root = find_pack(pack, draft)
    may_place = provider == PROCESSOR and draft_on is None
    try:
        with opening(root):
            return _open_pack(
                root, wanted, request, limit=limit, verify=verify, wrap=wrap, asked=runtime == AUTO, may_place=may_place
            )
    except BudgetExceeded as error:
        advice = f"{error.advice}; `edgedecode plan` lists what a session needs"
        raise BudgetExceeded(error.reason, advice, table=error.table, needed_nbytes=error.needed_nbytes) from None


def plan(  # noqa: PLR0913  (as `load`)
    pack: str | Path | None = None,
    options: SessionOptions | None = None,
    *,
    draft: str | Path | None = None,
    memory: int | str | None = None,
    runtime: str | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    kv_type: str | None = None,
    mmap: bool = True,
    repack: bool = True,
    draft_on: str | None = None,
) -> PackPlan:
    """Plan a session of a pack, as `load` and `Pair.session` with these arguments would open it, without loading it.

    The plan lists the bytes of each part, and what is cut to fit the limit in force. "auto" plans for the engine
    that `load` tries first. Raises the errors of `load` except BudgetExceeded (the plan states whether it
    fits), and CapabilityError for an engine that does not report the models' memory.
    """
    limit = _limit(memory)
    request = _request(
        provider=provider,
        threads=threads,
        kv_type=kv_type,
        mmap=mmap,
        repack=repack,
        adapters=options is not None and options.adapter is not None,
        context=None if options is None else options.context,
    )
    wanted = runtime if runtime is not None else default_runtime()
    root = find_pack(pack, draft)
    with opening(root):
        manifest = check_pack(root, full=False)
        engine = None if wanted == AUTO else find_runtime(wanted)  # in `load`'s order, for the same process memory
        tokenizer = pack_tokenizer(manifest, root, Budget())
        wrap = _wrapped(None, draft_on=draft_on)

        def plan_on(engine: Runtime, request: EngineRequest = request) -> PackPlan:
            engine = wrap(engine)
            if not isinstance(engine, PlanningRuntime):
                raise CapabilityError(f"the engine {engine.name} does not report a model's memory before it is loaded")
            footprint = _footprint(manifest, root, tokenizer=tokenizer, engine=engine, request=request)
            session = with_switch_rule(options or SessionOptions(), manifest)
            return _pack_plan(manifest, footprint, session, engine, request=request, limit=limit)

        if engine is not None:
            return plan_on(engine)
        if provider == PROCESSOR and draft_on is None and (kept := _on_kept(manifest, request, plan_on)) is not None:
            return kept
        return plan_on(find_runtime(first_engine(manifest, root, request, asked=False)))


def _pack_plan(
    manifest: Manifest,
    footprint: PackFootprint,
    options: SessionOptions,
    engine: Runtime,
    *,
    request: EngineRequest,
    limit: Limit | None,
) -> PackPlan:
    """Fit a session into the limit, and predict its speed."""
    fitted = footprint.fit(options, None if limit is None else limit.nbytes)
    smaller = None if request.kv_type is not None else footprint.least_with(SMALLER_KV, options)
    experience = load_experience(_experience_path(manifest, engine, request, footprint.card))

    def speed(choice: Choice) -> PredictedSpeed | None:
        half = choice.context // 2
        return predicted_speed(
            experience, choice.drafters, draft_max=choice.draft_max, context_tokens=half, adapter=choice.adapter
        )

    uncut = footprint.fit(options, None).choice
    return PackPlan(manifest.name, engine.name, limit, fitted, smaller, speed(fitted.choice), speed(uncut))


def _wrapped(wrap: Callable[[Runtime], Runtime] | None, *, draft_on: str | None) -> Callable[[Runtime], Runtime]:
    """Return a function that places the draft elsewhere and applies `wrap`. Raises InputError for an unknown place."""
    place = None if draft_on is None else Place.parse(draft_on)

    def wrapped(engine: Runtime) -> Runtime:
        engine = place_draft(engine, place)
        return engine if wrap is None else wrap(engine)

    return wrapped


def _request(
    *,
    provider: str,
    threads: int | None,
    kv_type: str | None,
    mmap: bool,
    repack: bool,
    adapters: bool,
    context: int | None,
) -> EngineRequest:
    """Check the options and return how to open an engine. Raises InputError."""
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"{threads} threads are out of range: 1 to 1024")
    if kv_type is not None and kv_type not in KV_TYPES:
        raise InputError(f"unknown KV type {kv_type!r}: use one of {', '.join(KV_TYPES)}")
    asked = {NO_MMAP: not mmap, NO_REPACK: not repack, ADAPTERS: adapters}
    loading = tuple(need for need, wanted in asked.items() if wanted)
    return EngineRequest(provider=provider, threads=threads, kv_type=kv_type, context=context, loading=loading)


def _limit(memory: int | str | None) -> Limit | None:
    """Return the limit in force; notify the user if it is lower than the one asked for."""
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
    wrap: Callable[[Runtime], Runtime],
    asked: bool,
    may_place: bool,
) -> Pair:
    """Open the pack at `root`; "auto": on the first of its engines. asked: whether the caller asked for auto.

    may_place: whether the models may run where `bench --place auto` found them fastest.
    """
    manifest = check_pack(root, full=verify)
    _warn_if_short(manifest)
    engine = None if wanted == AUTO else find_runtime(wanted) if isinstance(wanted, str) else wanted
    tokenizer = pack_tokenizer(manifest, root, Budget(limit))

    def open_on(engine: Runtime, request: EngineRequest = request) -> Pair:
        placed = wrap(engine)
        try:
            pair = Pair(
                manifest,
                root,
                tokenizer=tokenizer,
                runtime=placed,
                provider=request.provider,
                threads=request.threads,
                budget=Budget(limit),
                kv_type=request.kv_type,
                loading=request.loading,
            )
        except BudgetExceeded as error:
            raise _refused(
                error, manifest, root, tokenizer=tokenizer, engine=placed, request=request, limit=limit
            ) from None
        pair.keep_in_use(hold_in_use(root))
        pair.keep_experience(_experience_path(manifest, placed, request, pair.target.card))
        return pair

    if engine is not None:
        return open_on(engine)
    if may_place and (kept := _on_kept(manifest, request, open_on)) is not None:
        return kept
    first = first_engine(manifest, root, request, asked=asked)
    return _open_on_first(first, open_on, others=partial(other_engines, manifest, root, request, first=first))


def _on_kept(manifest: Manifest, request: EngineRequest, use: Callable[[Runtime, EngineRequest], T]) -> T | None:
    """Call `use` with the kept placement; None if there is none, or if it cannot be used any more."""
    kept = kept_placement(manifest, request)
    if kept is None:
        return None
    try:
        return use(kept.engine(), replace(request, provider=kept.target.provider))
    except (BudgetExceeded, CapabilityError, RuntimeUnavailable, InputError) as error:
        notice(f"the fastest placement here ({kept}) cannot be used ({error}); choosing an engine again")
        return None


def _footprint(
    manifest: Manifest, root: Path, *, tokenizer: Tokenizer, engine: PlanningRuntime, request: EngineRequest
) -> PackFootprint:
    """Return the footprint of sessions of a pack that is not open, in addition to this process's memory now."""
    return PackFootprint(
        manifest,
        root,
        tokenizer=tokenizer,
        engine=engine,
        process=[process_holder(tokenizer), Holder(VARIATION, VARIATION_NBYTES)],
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
    """Return the refusal of a target that does not fit, with the smallest sufficient budgets of its sessions."""
    if limit is None or not isinstance(engine, PlanningRuntime):
        return error
    footprint = _footprint(manifest, root, tokenizer=tokenizer, engine=engine, request=request)
    try:
        plan = footprint.fit(SessionOptions(context=request.context), limit.nbytes)
    except EdgeDecodeError:  # the budget error comes first; this one is reported once the pack fits
        return error
    return plan.refusal(error, limit, context_asked=request.context is not None)


def _experience_path(manifest: Manifest, engine: object, request: EngineRequest, card: ModelCard) -> Path | None:
    """Return the file of the scheduler's experience with the pack on this engine; None: it is not kept.

    card: the target's.
    """
    name, place = str(getattr(engine, "name", "")), getattr(engine, "draft_place", None)
    if (version := engine_version(name)) is None:
        return None
    placed = () if place is None else (place, engine_version(draft_engine(engine)))
    settings = (request.provider, card.threads, request.kv_type, card.kernels, *placed)
    return experience_path(manifest, engine=name, version=version, settings=settings)


def _warn_if_short(manifest: Manifest) -> None:
    """Notify the user if less memory is free than the target's weights take."""
    free, needed = free_memory(), target_nbytes(manifest)
    if free is not None and free.nbytes < needed:
        notice(
            f"only {format_nbytes(free.nbytes)} of memory is free, and the target's weights take "
            f"{format_nbytes(needed)}: close other programs, or expect slow answers"
        )


def _open_on_first(name: str, open_on: Callable[[Runtime], Pair], *, others: Callable[[], Sequence[str]]) -> Pair:
    """Open the pair on this engine, or the first of the others that can; notify the user of each failure's reason."""
    try:
        return open_on(find_runtime(name))
    except (BudgetExceeded, CapabilityError, RuntimeUnavailable) as error:
        if not (left := others()):
            raise
        notice(f"{name} cannot run this pack here ({error.reason}); trying {left[0]}")
    return _open_on_first(left[0], open_on, others=lambda: left[1:])
