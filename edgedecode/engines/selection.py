"""Selects the engine for a pack when the user names none: asks the installed engines, and measures if several can."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgedecode.errors import CapabilityError, EdgeDecodeError, InputError, RuntimeUnavailable
from edgedecode.memory.process_memory import held_nbytes
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.manifest import Manifest
from edgedecode.user_notices import notice

from .child import interpreter
from .engine_choice import Candidate, Choice, Speeds, choose, room
from .engine_factory import Refusal, RuntimeFactory
from .engine_speeds import EngineRequest, finding_path, load_speeds, measure_speeds, store_speeds
from .interface import role_needs
from .registry import RUNTIMES, find_factory, installed

AUTO = "auto"
_FLOAT_BITS = 16
USUAL = "onnx"
"""The default engine where several can run a pack and nothing can be measured."""
_8_BIT_ACTIVATIONS = ("llama",)
"""Engines that round the activations of every quantized product to 8 bits."""
_TOO_COARSE = Refusal("it rounds activations to 8 bits, and this model has some that need 16")


def default_runtime() -> str:
    """Return the default runtime: `EDGEDECODE_RUNTIME`, else auto. Raises InputError for an unknown name."""
    name = os.environ.get("EDGEDECODE_RUNTIME") or AUTO
    if name not in (known := (*installed(RUNTIMES), AUTO)):
        raise InputError(f"EDGEDECODE_RUNTIME is {name!r}, which is not an engine here: set one of {', '.join(known)}")
    return name


def engine_candidates(manifest: Manifest, root: Path, request: EngineRequest) -> list[Candidate]:
    """Ask every installed runtime whether it can run the pack, without loading an engine into this process."""
    return _precise_enough([_candidate(name, manifest, root, request) for name in installed(RUNTIMES)], manifest)


def known_choice(manifest: Manifest, root: Path, request: EngineRequest, *, measure: bool = False) -> Choice:
    """Return the choice of auto from cached measurements. measure: measure again first."""
    candidates = engine_candidates(manifest, root, request)
    able = {each.name: each.version or "" for each in candidates if each.able}
    path = finding_path(manifest, request, versions=able) if len(able) > 1 else None
    speeds = load_speeds(path)
    if path is not None and measure:
        speeds = measure_speeds(root, list(able), request, known=Speeds({}, needs=speeds.needs))
        store_speeds(path, speeds)
    return choose(candidates, speeds=speeds, preferred=USUAL)


def chosen_engines(manifest: Manifest, root: Path, request: EngineRequest, *, asked: bool) -> tuple[str, ...]:
    """Return the engines to try, in order. Measures once per pack if several engines can run it.

    asked: the user chose auto explicitly: a notice explains why each other engine was not taken. Otherwise it mentions
    broken engines only. Raises RuntimeUnavailable if no engine is installed, CapabilityError if none can run the pack.
    """
    candidates = engine_candidates(manifest, root, request)
    able = {each.name: each.version or "" for each in candidates if each.able}
    if not able:
        return (_only_installed(candidates),)
    if request.memory is not None:
        request = replace(request, held=held_nbytes() or 0)
    speeds, measured = _speeds(manifest, root, request, versions=able) if len(able) > 1 else (None, False)
    too_large, shortened = _too_large(able, speeds, request)
    choice = choose(candidates, speeds=speeds, preferred=USUAL, too_large=too_large)
    others = [f"{each.name}: {each.why_not}" for each in candidates if not each.able] if asked else list(choice.broken)
    passed_over = too_large if {*able} - {*too_large} else too_large[shortened:]
    if request.memory is not None and {*able} - {*passed_over}:
        others += [f"{name}: it does not fit {format_nbytes(request.memory)}" for name in sorted(passed_over)]
    taken = f"decoding on {choice.names[0]}"
    if speeds is not None and measured:
        taken = f"measured the engines on this pack, once: {speeds.line} a token; {taken}"
    if others or measured:
        notice(taken + (f" ({'; '.join(others)})" if others else ""))
    return choice.names


def _speeds(
    manifest: Manifest, root: Path, request: EngineRequest, *, versions: dict[str, str]
) -> tuple[Speeds | None, bool]:
    """Return the speeds, and whether they were measured now; None without a cache, since each load would measure."""
    path = finding_path(manifest, request, versions=versions)
    if path is None:
        return None, False
    known = load_speeds(path)
    unknown = [name for name in versions if _is_unknown(known, name, request)]
    if not unknown or interpreter() is None or (USUAL in versions and _is_quantized_file(manifest)):
        return known, False
    speeds = measure_speeds(root, unknown, request, known=known)
    store_speeds(path, speeds)
    return speeds, speeds.seconds != known.seconds


def _is_quantized_file(manifest: Manifest) -> bool:
    """Return whether the models are GGUF files that need no measurement: the usual engine's own kernels run them."""
    return all(entry.gguf and not entry.graphs and entry.bits < _FLOAT_BITS for entry in manifest.models.values())


def _is_unknown(known: Speeds, name: str, request: EngineRequest) -> bool:
    if name in known.refused:
        return False
    fits = True if request.free is None else known.fits(name, context=request.context, free_nbytes=request.free)
    return fits is None or (fits and name not in known.seconds)


def _too_large(names: Collection[str], speeds: Speeds | None, request: EngineRequest) -> tuple[list[str], int]:
    """Return the engines known not to fit the budget, and how many of them still run with a reduced session.

    Those that run reduced come first, fastest first; then the others, by least memory needed. Assumes that this process
    has loaded no engine.
    """
    if speeds is None or request.free is None:
        return [], 0
    free, context = request.free, request.context
    found = [name for name in names if speeds.fits(name, context=context, free_nbytes=free) is False]
    running = [name for name in found if speeds.runs_in(name, context=context, free_nbytes=free)]
    running.sort(key=lambda name: speeds.seconds.get(name, float("inf")))
    others = sorted({*found} - {*running}, key=lambda name: (speeds.least.get(room(name, context), 0), name))
    return running + others, len(running)


def _only_installed(candidates: list[Candidate]) -> str:
    """Return the only installed engine: opening it raises a more precise error. Raises if none or several refuse."""
    present = [each for each in candidates if each.version is not None]
    if not present:
        names = ", ".join(f"pip install 'edgedecode[{each.name}]'" for each in reversed(candidates))
        raise RuntimeUnavailable(f"no engine is installed: {names or 'install edgedecode again'}")
    if len(present) > 1:
        reasons = "; ".join(f"{each.name}: {each.why_not}" for each in present)
        raise CapabilityError(f"no installed engine can run this pack with these options: {reasons}")
    return present[0].name


def engine_version(name: str) -> str | None:
    """Return the version of an installed engine; None if it is not installed or has no version."""
    if name not in installed(RUNTIMES):
        return None
    try:
        factory = find_factory(name)
    except RuntimeUnavailable:
        return None
    return factory.engine_version() if isinstance(factory, RuntimeFactory) else None


def _candidate(name: str, manifest: Manifest, root: Path, request: EngineRequest) -> Candidate:
    try:
        factory = find_factory(name)
    except RuntimeUnavailable:
        return Candidate(name, None)
    if not isinstance(factory, RuntimeFactory):
        return Candidate(name, "unknown")
    version = factory.engine_version()
    return Candidate(name, version, None if version is None else _refusal(factory, manifest, root, request))


def _precise_enough(candidates: list[Candidate], manifest: Manifest) -> list[Candidate]:
    """Refuse engines with 8-bit activations where the target needs 16 bits: their output would differ."""
    activations = manifest.models["target"].activations
    if activations is None or not activations.wide or not any(each.able and each.name == USUAL for each in candidates):
        return candidates
    return [
        replace(each, refusal=_TOO_COARSE) if each.able and each.name in _8_BIT_ACTIVATIONS else each
        for each in candidates
    ]


def _refusal(factory: RuntimeFactory, manifest: Manifest, root: Path, request: EngineRequest) -> Refusal | None:
    """Return the first refusal of any of the pack's models. A KV type applies to the target only, as in `Pair`."""
    for role in manifest.models:
        kv_type = (f"kv:{request.kv_type}",) if request.kv_type and role == "target" else ()
        entry = manifest.located(role)
        with suppress(EdgeDecodeError):  # opening the pack reports other errors
            if refusal := factory.refusal(
                entry, root, name=role, provider=request.provider, needs=(*kv_type, *role_needs(role, request.loading))
            ):
                return refusal
    return None
