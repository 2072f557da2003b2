"""Plans a session of a pack, its memory and its speed, without loading the models."""

from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.engines.interface import PlanningRuntime, Runtime
from edgedecode.engines.registry import find_runtime
from edgedecode.engines.selection import EngineRequest, default_runtime, first_engine
from edgedecode.errors import CapabilityError
from edgedecode.library.find import find_pack
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.memory.planner import Choice, MemoryPlan
from edgedecode.open_pack import (
    SMALLER_KV,
    CheckedPack,
    LoadOptions,
    engine_request,
    limit_asked,
    named_engine,
    placing,
    rarer,
)
from edgedecode.options import SessionOptions
from edgedecode.pack.gate import check_pack
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import pack_tokenizer
from edgedecode.schedule.predicted_speed import PredictedSpeed, predicted_speed
from edgedecode.sessions.experience_file import load_experience
from edgedecode.sessions.switch_choice import with_switch_rule

__all__ = ["PackPlan", "plan"]


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


def plan(
    pack: str | Path | None = None,
    session: SessionOptions | None = None,
    *,
    draft: str | Path | None = None,
    memory: int | str | None = None,
    runtime: str | None = None,
    threads: int | None = None,
    kv_type: str | None = None,
    options: LoadOptions | None = None,
) -> PackPlan:
    """Plan a session of a pack, as `load` and `Pair.session` with these arguments would open it, without loading it.

    The plan lists the bytes of each part, and what is cut to fit the limit in force. "auto" plans for the engine
    that `load` tries first. The session's adapter and context are those of the plan. Raises the errors of `load` except
    BudgetExceeded (the plan states whether it fits), and CapabilityError for an engine that does not report the models'
    memory.
    """
    rare, limit = rarer(options), limit_asked(memory)
    session = session or SessionOptions()
    session = replace(session, context=rare.context) if session.context is None else session
    rare = replace(rare, context=session.context)
    place = placing(rare)
    request = engine_request(threads, kv_type, session.adapter is not None, rare)
    wanted = runtime if runtime is not None else default_runtime()
    root = find_pack(pack, draft)
    with opening(root):
        manifest = check_pack(root, full=False)
        engine = named_engine(wanted)  # in `load`'s order, for the same process memory
        known = CheckedPack(manifest, root, pack_tokenizer(manifest, root, Budget()), limit, place)
        if engine is None:
            engine = find_runtime(first_engine(manifest, root, request, asked=False))
        return _planned(known, place(engine), request, session)


def _planned(known: CheckedPack, engine: Runtime, request: EngineRequest, session: SessionOptions) -> PackPlan:
    """Fit a session into the limit, and predict its speed."""
    limit = known.limit
    if not isinstance(engine, PlanningRuntime):
        raise CapabilityError(f"the engine {engine.name} does not report a model's memory before it is loaded")
    session, footprint = with_switch_rule(session, known.manifest), known.footprint(engine, request)
    fitted = footprint.fit(session, None if limit is None else limit.nbytes)
    smaller = None if request.kv_type is not None else footprint.least_with(SMALLER_KV, session)
    experience = load_experience(known.experience_path_of(engine, request, footprint.card))

    def speed(choice: Choice) -> PredictedSpeed | None:
        half = choice.context // 2
        return predicted_speed(
            experience, choice.drafters, draft_max=choice.draft_max, context_tokens=half, adapter=choice.adapter
        )

    uncut = footprint.fit(session, None).choice
    return PackPlan(known.manifest.name, engine.name, limit, fitted, smaller, speed(fitted.choice), speed(uncut))
