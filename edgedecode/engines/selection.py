"""Selects the engine for a pack when the user names none: asks the installed engines which of them can run it."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.errors import CapabilityError, EdgeDecodeError, InputError, RuntimeUnavailable
from edgedecode.pack.manifest import Manifest
from edgedecode.user_notices import notice

from .engine_factory import Refusal, RuntimeFactory
from .interface import role_needs
from .registry import RUNTIMES, find_factory, installed

AUTO = "auto"
USUAL = "onnx"
"""The first choice among engines that can run a pack."""
_8_BIT_ACTIVATIONS = ("llama",)
"""Engines that round the activations of every quantized product to 8 bits."""
_TOO_COARSE = Refusal("it rounds activations to 8 bits, and this model has some that need 16")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """How an engine is opened on a pack. context: a session's positions, None: the default."""

    provider: str = "cpu"
    threads: int | None = None
    kv_type: str | None = None
    context: int | None = None
    loading: tuple[str, ...] = ()
    """Any of `NO_MMAP`, `NO_REPACK`, `ADAPTERS` and `SQUARES`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine, by its runtime's name. version None: not installed. refusal None: it can run the pack."""

    name: str
    version: str | None
    refusal: Refusal | None = None

    @property
    def able(self) -> bool:
        return self.version is not None and self.refusal is None

    @property
    def why_not(self) -> str:
        """A short reason why it is not able; empty if it is."""
        return "it is not installed" if self.version is None else self.refusal.reason if self.refusal else ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Engines that can run the pack, in the order to try them: the next one is for when an engine fails to open."""

    names: tuple[str, ...]
    reason: str


def default_runtime() -> str:
    """Return the default runtime: `EDGEDECODE_RUNTIME`, else auto. Raises InputError for an unknown name."""
    name = os.environ.get("EDGEDECODE_RUNTIME") or AUTO
    if name not in (known := (*installed(RUNTIMES), AUTO)):
        raise InputError(f"EDGEDECODE_RUNTIME is {name!r}, which is not an engine here: set one of {', '.join(known)}")
    return name


def engine_candidates(manifest: Manifest, root: Path, request: EngineRequest) -> list[Candidate]:
    """Ask every installed runtime whether it can run the pack, without loading an engine into this process."""
    return _precise_enough([_candidate(name, manifest, root, request) for name in installed(RUNTIMES)], manifest)


def engine_choice(manifest: Manifest, root: Path, request: EngineRequest) -> Choice:
    """Return the choice of auto, and why. Without an able engine, `names` is empty."""
    return _choice(engine_candidates(manifest, root, request))


def first_engine(manifest: Manifest, root: Path, request: EngineRequest, *, asked: bool) -> str:
    """Return the engine to try first. If the usual one can run the pack, no module of the others is imported.

    asked: the user chose auto explicitly: all are asked, and a notice explains why each other one was not taken. Raises
    RuntimeUnavailable if no engine is installed, CapabilityError if none can run the pack.
    """
    if not asked and USUAL in installed(RUNTIMES) and _candidate(USUAL, manifest, root, request).able:
        return USUAL
    candidates = engine_candidates(manifest, root, request)
    able = _choice(candidates).names
    if not able:
        return _only_installed(candidates)
    told = [each for each in candidates if not each.able and (asked or (each.refusal and each.refusal.told))]
    if told:
        reasons = "; ".join(f"{each.name}: {each.why_not}" if asked else each.why_not for each in told)
        notice(f"decoding on {able[0]} ({reasons})")
    return able[0]


def other_engines(manifest: Manifest, root: Path, request: EngineRequest, *, first: str) -> tuple[str, ...]:
    """Return the engines to try, in order, if the first one fails to open the pack."""
    names = _choice(engine_candidates(manifest, root, request)).names
    return tuple(name for name in names if name != first)


def _choice(candidates: Sequence[Candidate]) -> Choice:
    able = sorted((each.name for each in candidates if each.able), key=lambda name: (name != USUAL, name))
    rejected = "; ".join(f"{each.name}: {each.why_not}" for each in candidates if not each.able)
    return Choice(tuple(able), rejected or (f"rather than {', '.join(able[1:])}" if able[1:] else "it is the only one"))


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
    if not any(each.able and each.name == USUAL for each in candidates):
        return candidates
    return [
        replace(each, refusal=_TOO_COARSE) if each.able and _too_coarse(each.name, manifest) else each
        for each in candidates
    ]


def _too_coarse(name: str, manifest: Manifest) -> bool:
    activations = manifest.models["target"].activations
    return name in _8_BIT_ACTIVATIONS and activations is not None and bool(activations.wide)


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
