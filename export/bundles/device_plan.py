"""Plans a bundle's memory on a device: the context, and whether the draft model fits."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgedecode.adapters.adapter_memory import loaded_nbytes
from edgedecode.engines.interface import ADAPTERS, PlanningRuntime
from edgedecode.engines.registry import find_runtime
from edgedecode.engines.selection import EngineRequest
from edgedecode.errors import CapabilityError, ExportError
from edgedecode.memory.budget import Budget, Holder
from edgedecode.memory.planner import MemoryPlan
from edgedecode.memory.sizes import format_nbytes
from edgedecode.options import SessionOptions
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.static_graphs import head_rows
from edgedecode.sessions.memory_plan import PackFootprint
from edgedecode.text.tokenizer import Tokenizer

from .request import Device

_APP_NBYTES = 80_000_000
"""Assumed: an app's own memory with its runtime library and a tokenizer, without models."""
_DRAFTERS = ("model", "trim", "head")
"""Those that hold a model."""
_LEAST_CONTEXT = 512
_CONTEXT_STEP = 256
_LLAMA_ROWS = 64
"""Rows of a llama.cpp pass, `-ub`: its buffers grow with them."""


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """What fits a budget. holders: bytes by holder. cuts: what was left out, a clause each."""

    context: int
    drafts: bool
    holders: Mapping[str, int]
    cuts: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(self.holders.values())


def fit_native(
    manifest: Manifest, root: Path, tokenizer: Tokenizer, *, device: Device, context: int | None
) -> MemoryFit:
    """Fit the pack's models and its largest adapter into the device's budget, as the native library opens them there.

    context: positions asked for, which are not cut. Raises ExportError if not even the target fits.
    """
    engine = find_runtime("onnx")
    assert isinstance(engine, PlanningRuntime)

    def planned(adapter: str | None) -> MemoryPlan:
        footprint = PackFootprint(
            manifest,
            root,
            tokenizer=tokenizer,
            engine=engine,
            process=[Holder("app", _APP_NBYTES)],
            budget=Budget(),
            request=EngineRequest(threads=device.threads, loading=(ADAPTERS,) if adapter else ()),
        )
        return footprint.fit(SessionOptions(context=context, adapter=adapter), device.budget_nbytes)

    try:
        plan = planned(_largest_adapter(manifest, root))
    except CapabilityError:  # no graph takes adapters: they stay behind
        plan = planned(None)
    if not plan.fits:
        raise _too_large(manifest.name, device, plan.least_running)
    drafts = bool({*_DRAFTERS} & {*plan.choice.drafters})
    cuts = tuple(f"{cut.what}: {cut.effect}" for cut in plan.cuts)
    return MemoryFit(plan.choice.context, drafts, {each.name: each.nbytes for each in plan.holders}, cuts)


def _largest_adapter(manifest: Manifest, root: Path) -> str | None:
    """Return the name of the target's adapter that takes the most memory; None: it has none that can be read."""
    sizes = {}
    for name in (name for name, each in manifest.adapters.items() if each.role == "target"):
        with suppress(CapabilityError):
            sizes[name] = loaded_nbytes(manifest, root, name)[0]
    return max(sizes, key=sizes.__getitem__, default=None)


def fit_npu(manifest: Manifest, root: Path, *, device: Device, context: int | None) -> MemoryFit:
    """Fit the compiled graphs into the device's budget: one binary for each width, with its own copy of the weights.

    Raises ExportError for a longer context than theirs, or if not even the target fits.
    """
    needed = 0
    for roles in dict.fromkeys([tuple(manifest.models), ("target",)]):
        holders, slots = {"app": _APP_NBYTES}, 0
        for role in roles:
            entry = manifest.models[role]
            compiled = {graph.width: graph for graph in entry.graphs.values() if graph.compiled}
            slots = max(graph.slots for graph in compiled.values())
            for width, graph in sorted(compiled.items()):
                holders[f"weights:{role}:{width}"] = (root / graph.compiled[0].binary).stat().st_size
            cell = 2 * 4 * entry.layers * entry.kv_heads * entry.head_size
            holders[f"kv:{role}"] = cell * slots
            holders[f"buffers:{role}"] = sum(
                4 * width * (slots + width) + 4 * head_rows(width) * entry.rows + cell * width for width in compiled
            )
        if context is not None and context != slots:
            raise ExportError(f"--ctx-size {context}: the graphs were compiled for {slots} positions: leave it out")
        needed = sum(holders.values())
        if needed <= device.budget_nbytes:
            cuts = () if "draft" in roles or "draft" not in manifest.models else ("no draft model: no speculation",)
            return MemoryFit(slots, "draft" in roles, holders, cuts)
    raise _too_large(manifest.name, device, needed)


def fit_llama(
    models: Mapping[str, tuple[ModelEntry, int]], *, name: str, device: Device, context: int | None
) -> MemoryFit:
    """Fit GGUF files into the device's budget, as stock llama.cpp opens them there.

    models: by role the manifest's entry and the file's bytes. Weights count twice, because on arm64 llama.cpp keeps a
    second copy in the layout of its kernels. Keys and values are 16-bit floats. Raises ExportError.
    """
    most = min(entry.context for entry, _ in models.values())
    if context is not None and context > most:
        raise ExportError(f"--ctx-size {context}: the pack's models have a context of {most}: give at most that")
    full = most if context is None else context
    contexts = range(min(full, 4096), _LEAST_CONTEXT - 1, -_CONTEXT_STEP) if context is None else [full]
    contexts = contexts or [full]
    needed = 0
    for roles in dict.fromkeys([tuple(models), ("target",)]):
        for length in contexts:
            holders = {"app": _APP_NBYTES}
            for role in roles:
                entry, nbytes = models[role]
                cell = 2 * 2 * entry.layers * entry.kv_heads * entry.head_size
                holders[f"weights:{role}"] = 2 * nbytes
                holders[f"kv:{role}"] = cell * length
                holders[f"buffers:{role}"] = 4 * _LLAMA_ROWS * (entry.rows + 12 * entry.hidden_size)
            needed = sum(holders.values())
            if needed <= device.budget_nbytes:
                cuts = [f"context of {length} instead of {full}"] if length < min(full, 4096) else []
                cuts += [] if "draft" in roles or "draft" not in models else ["no draft model: no speculation"]
                return MemoryFit(length, "draft" in roles, holders, tuple(cuts))
    raise _too_large(name, device, needed)


def _too_large(name: str, device: Device, needed: int) -> ExportError:
    memory, budget = format_nbytes(device.memory_nbytes), format_nbytes(device.budget_nbytes)
    return ExportError(
        f"{name} does not fit a device of {memory}: it needs {format_nbytes(needed)}, an app may hold {budget} there: "
        f"give a larger --device-memory, or export a smaller model"
    )
