"""Finds the engine for a pack where the user leaves it open: asks the installed ones, measures where that decides."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgedecode.errors import CapabilityError, EdgeDecodeError, InputError, RuntimeUnavailable
from edgedecode.memory.process_memory import peak_nbytes, resident_nbytes
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.manifest import Manifest
from edgedecode.user_notices import notice

from .child import interpreter
from .engine_choice import Candidate, Choice, Speeds, choose, room
from .engine_factory import Refusal, RuntimeFactory
from .engine_speeds import EngineRequest, finding_path, load_speeds, measure_speeds, store_speeds
from .interface import role_needs
from .registry import RUNTIMES, find_factory, installed

__all__ = ["AUTO", "USUAL", "chosen_engines", "default_runtime", "engine_candidates", "engine_version", "known_choice"]

AUTO = "auto"
USUAL = "onnx"
"""The engine that is taken of several where nothing can be measured."""
_COARSE = ("llama",)
"""Engines that round the activations of every quantized product to 8 bits."""
_TOO_COARSE = Refusal("it rounds activations to 8 bits, and this model has some that need 16")


def default_runtime() -> str:
    """Return the runtime where none is named: `EDGEDECODE_RUNTIME`, else auto. Raises InputError for another word."""
    name = os.environ.get("EDGEDECODE_RUNTIME") or AUTO
    if name not in (known := (*installed(RUNTIMES), AUTO)):
        raise InputError(f"EDGEDECODE_RUNTIME is {name!r}, which is not an engine here: set one of {', '.join(known)}")
    return name


def engine_candidates(manifest: Manifest, root: Path, request: EngineRequest) -> list[Candidate]:
    """Ask every installed runtime whether it can run the pack; no engine is loaded into this process."""
    return _precise([_candidate(name, manifest, root, request) for name in installed(RUNTIMES)], manifest)


def known_choice(manifest: Manifest, root: Path, request: EngineRequest, *, measure: bool = False) -> Choice:
    """Return what auto takes by what is known; `measure`: measure now, whatever is known."""
    candidates = engine_candidates(manifest, root, request)
    able = {each.name: each.version or "" for each in candidates if each.able}
    path = finding_path(manifest, request, versions=able) if len(able) > 1 else None
    speeds = load_speeds(path)
    if path is not None and measure:
        speeds = measure_speeds(root, list(able), request, known=Speeds({}, needs=speeds.needs))
        store_speeds(path, speeds)
    return choose(candidates, speeds=speeds, preferred=USUAL)


def chosen_engines(manifest: Manifest, root: Path, request: EngineRequest, *, asked: bool) -> tuple[str, ...]:
    """Return the engines to try, in this order; measures, once, where several are able.

    asked: the user wrote auto, and hears why it is not another engine; otherwise only of engines that do not run.
    Raises RuntimeUnavailable where no engine is installed, CapabilityError where none can run the pack.
    """
    candidates = engine_candidates(manifest, root, request)
    able = {each.name: each.version or "" for each in candidates if each.able}
    if not able:
        return (_only_installed(candidates),)
    if request.memory is not None:
        request = replace(request, held=resident_nbytes() or peak_nbytes() or 0)
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
    """Return what is known, and whether it was timed now; None where it could not be kept: it would be done again."""
    path = finding_path(manifest, request, versions=versions)
    if path is None:
        return None, False
    known = load_speeds(path)
    unknown = [name for name in versions if _is_unknown(known, name, request)]
    if not unknown or interpreter() is None:
        return known, False
    speeds = measure_speeds(root, unknown, request, known=known)
    store_speeds(path, speeds)
    return speeds, speeds.seconds != known.seconds


def _is_unknown(known: Speeds, name: str, request: EngineRequest) -> bool:
    if name in known.refused:
        return False
    fits = True if request.free is None else known.fits(name, context=request.context, free_nbytes=request.free)
    return fits is None or (fits and name not in known.seconds)


def _too_large(names: Collection[str], speeds: Speeds | None, request: EngineRequest) -> tuple[list[str], int]:
    """Return the engines that are known not to fit the budget beside what this process holds; it has loaded none.

    First those that run with less than a usual session has, which are counted: the faster ones first. Then those that
    need least.
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
    """Return the one installed engine, whose own refusal says most; raise where there is none, or several refuse."""
    there = [each for each in candidates if each.version is not None]
    if not there:
        names = ", ".join(f"pip install 'edgedecode[{each.name}]'" for each in reversed(candidates))
        raise RuntimeUnavailable(f"no engine is installed: {names or 'install edgedecode again'}")
    if len(there) > 1:
        reasons = "; ".join(f"{each.name}: {each.why_not}" for each in there)
        raise CapabilityError(f"no installed engine can run this pack with these options: {reasons}")
    return there[0].name


def engine_version(name: str) -> str | None:
    """Return the version of an installed engine; None for one that is not, or an engine of a caller's own."""
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


def _precise(candidates: list[Candidate], manifest: Manifest) -> list[Candidate]:
    """Leave out engines that would say something else: those with 8-bit activations, where the target needs 16 bits."""
    activations = manifest.models["target"].activations
    if activations is None or not activations.wide or not any(each.able and each.name == USUAL for each in candidates):
        return candidates
    return [replace(each, refusal=_TOO_COARSE) if each.able and each.name in _COARSE else each for each in candidates]


def _refusal(factory: RuntimeFactory, manifest: Manifest, root: Path, request: EngineRequest) -> Refusal | None:
    """Ask of every model; a KV type is asked of the target only, as `Pair` does."""
    for role in manifest.models:
        kv_type = (f"kv:{request.kv_type}",) if request.kv_type and role == "target" else ()
        entry = manifest.located(role)
        with suppress(EdgeDecodeError):  # what else is wrong with the pack, its opening says
            if refusal := factory.refusal(
                entry, root, name=role, provider=request.provider, needs=(*kv_type, *role_needs(role, request.loading))
            ):
                return refusal
    return None
