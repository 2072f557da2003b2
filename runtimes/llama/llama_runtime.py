"""The llama.cpp engine as a `Runtime`: list its device and open a pack's GGUF files."""

import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from edgedecode.adapters.gguf_adapter import lora_modules, lora_projections
from edgedecode.decoding.model import LanguageModel, ModelCard
from edgedecode.engines.engine_factory import Refusal
from edgedecode.engines.interface import ADAPTERS, NO_MMAP, NO_REPACK, Device, ModelFootprint, ModelRequest
from edgedecode.errors import CapabilityError, ManifestError, RuntimeUnavailable
from edgedecode.gguf.header import Header, read_header
from edgedecode.memory.budget import Budget, Holder
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.gguf_check import check_header
from edgedecode.pack.manifest import ModelEntry
from edgedecode.user_notices import notice

from ..threads import check_threads, default_threads
from .files.cached_gguf import gguf_path
from .files.engine_probe import Finding, probe_engine
from .files.kept_copies import keep_copied, kept_copied
from .llama_devices import PROCESSOR, Offload, parse_offload
from .llama_engine import EXACT, INSTALL, KV_TYPES, Engine, Loading, Weights, engine_version
from .llama_footprint import (
    ENGINE_NBYTES,
    StateExtras,
    loaded_nbytes,
    plan_snapshots,
    position_nbytes,
    read_buffer_nbytes,
    session_nbytes,
    state_holders,
    weights_nbytes,
)
from .llama_model import LlamaModel

CODE = Holder("llama.cpp code", ENGINE_NBYTES)
OFFERED = {"tree", ADAPTERS, NO_MMAP, NO_REPACK, *(f"kv:{name}" for name in KV_TYPES)}
INT8_BLOCK = 32


class LlamaRuntime:
    """Implements `Runtime`. Raises RuntimeUnavailable if llama-cpp-python is not installed.

    The engine is loaded by the first `open`, after a child process has shown that it runs on this processor. mmap: map
    the weights; False reads them, for file systems where mapping is slow. If a budget cannot hold both the mapped file
    and the copies repacked for the kernels, the weights are read too: that is as fast, and needs memory for one copy.
    """

    def __init__(self, *, mmap: bool = True) -> None:
        version = engine_version()
        if version is None:
            raise RuntimeUnavailable(f"llama.cpp is not installed (no llama-cpp-python here): {INSTALL}")
        self._version = version
        self._mmap = mmap
        self._engine: Engine | None = None

    @property
    def name(self) -> str:
        return "llama"

    @staticmethod
    def engine_version() -> str | None:
        """Return llama-cpp-python's version."""
        return engine_version()

    @staticmethod
    def refusal(entry: ModelEntry, root: Path, *, name: str, provider: str, needs: Collection[str]) -> Refusal | None:
        """Return why `open` would refuse a model, or why the engine does not run in a child process; None if usable."""
        try:
            offload = parse_offload(provider)
        except CapabilityError as error:
            return Refusal(str(error))
        if not entry.gguf and not entry.gguf_plan:
            return Refusal(f"the pack has no GGUF file of the model {name} and cannot build one")
        try:
            _kv_type(entry, name, needs=needs)
        except CapabilityError as error:
            return Refusal(str(error))
        finding = probe_engine(engine_version() or "")
        if finding.works and offload.device not in ("", *finding.devices):
            return Refusal(f"llama.cpp has no device {offload.device!r} here")
        return None if finding.works else Refusal(f"llama.cpp does not run here: {finding.reason}", told=True)

    def devices(self) -> Sequence[Device]:
        """Return the processor, and the build's other devices; a child process tests the engine with a tiny model."""
        finding = self._probe()
        text = f"llama.cpp on the processor, llama-cpp-python {self._version}"
        found = [Device(self.name, PROCESSOR, text, available=finding.works, reason=finding.reason)]
        others = finding.devices.items() if finding.works else ()
        return found + [Device(self.name, provider, text, available=True) for provider, text in others]

    def open(self, request: ModelRequest) -> LanguageModel:
        found = self._find(request)
        budget, needs, card = request.budget, request.needs, found.card
        entry, header, path, name = request.entry, found.header, found.path, card.name
        file_nbytes = path.stat().st_size
        with ExitStack() as undo:  # releases every lease if a later step fails
            undo.enter_context(budget.reserve_for_process(CODE))
            loading, holder = self._fitting(found, budget, needs)
            reserved = holder.nbytes + read_buffer_nbytes(header, loading)
            lease = undo.enter_context(budget.reserve(holder.name, reserved, fixed=name == "target"))
            engine = self._engine = self._engine or Engine()
            weights = engine.load(path, loading)
            undo.callback(weights.close)
            _check_kind(weights, header, name=name, needs=needs)
            copied = engine.log.sizes().get("model", 0)
            loaded = loaded_nbytes(entry, file_nbytes=file_nbytes, loading=loading, copied_nbytes=copied)
            lease.resize(loaded)
            keep_copied(path, loading, copied)
            snapshots = plan_snapshots(header, file_nbytes=file_nbytes) if weights.recurrent else 0
            modules = _adapted(header, name=name, needs=needs)
            card = replace(
                card,
                tree=not weights.recurrent,
                rollback=not weights.recurrent or snapshots > 0,
                lora_rank=entry.hidden_size if modules else 0,  # any rank: a larger one would add nothing
                lora_modules=modules,
                notes=(*entry.notes, *_recurrent_notes(weights, header, name=name, snapshots=snapshots)),
                weights_nbytes=loaded,
                kernels="" if loading.repack else "unrepacked",
            )
            model = LlamaModel(
                weights,
                entry=entry,
                header=header,
                card=card,
                budget=budget,
                leases=[lease],
                extras=StateExtras(snapshots, _adapted_products(header, needs)),
            )
            undo.pop_all()
        return model

    def footprint(self, request: ModelRequest) -> ModelFootprint:
        """Return a model's memory. Reads the header of its GGUF file, which is built first if it is missing."""
        found = self._find(request)
        card, header = found.card, found.header
        recurrent = header.recurrent_nbytes > 0
        snapshots = plan_snapshots(header, file_nbytes=found.path.stat().st_size) if recurrent else 0
        card = replace(card, tree=not recurrent, rollback=not recurrent or snapshots > 0)
        loading, weights = self._fitting(found, request.budget, request.needs)
        holders = partial(
            state_holders,
            request.entry,
            header,
            card,
            extras=StateExtras(snapshots, _adapted_products(header, request.needs)),
        )
        return ModelFootprint(card, (CODE, weights), holders, read_buffer_nbytes(header, loading))

    def _find(self, request: ModelRequest) -> "_Found":
        """Find the model's file, building it if needed, and return the facts known before loading."""
        entry, root, name, budget, needs = request.entry, request.root, request.name, request.budget, request.needs
        offload = parse_offload(request.provider)
        check_threads(request.threads)
        kv_type = _kv_type(entry, name, needs=needs)
        self._check_works()  # before any file is built
        path = gguf_path(entry, root, name=name, budget=budget)
        header = read_header(path)
        check_header(header, entry, path=path)
        card = ModelCard(
            name=name,
            rows=entry.rows,
            vocabulary_size=min(entry.rows, request.vocabulary_size),
            context=min(entry.context, header.context or entry.context),
            kv_type=kv_type,
            kv_nbytes=position_nbytes(entry, header, kv_type=kv_type),
            kernel_noise=None if entry.graphs else entry.kernel_noise,  # with graphs, it was measured on the graphs
            threads=request.threads or default_threads(path.stat().st_size),
        )
        return _Found(path, entry, header, card, offload)

    def _fitting(self, found: "_Found", budget: Budget, needs: Collection[str]) -> tuple[Loading, Holder]:
        """Return how weights are loaded, and their memory: read instead of mapped, with a notice, to fit the budget."""
        mmap, repack = self._mmap and NO_MMAP not in needs, NO_REPACK not in needs
        loading = Loading(mmap=mmap, repack=repack, offload=found.offload)
        weights = found.weights(loading)
        if not loading.twice or _has_room(budget, weights.nbytes, found.entry, found.header, card=found.card):
            return loading, weights
        read = replace(loading, mmap=False)
        less = found.weights(read)
        if less.nbytes >= weights.nbytes:
            return loading, weights
        notice(
            f"the {found.card.name}'s weights are read instead of mapped to fit the budget "
            f"({format_nbytes(less.nbytes)} instead of two copies; same as --no-mmap)"
        )
        return read, less

    def _probe(self) -> Finding:
        return probe_engine(self._version)

    def _check_works(self) -> None:
        if self._engine is None and not (finding := self._probe()).works:
            raise RuntimeUnavailable(f"llama.cpp does not run here: {finding.reason}")


class _Found(NamedTuple):
    """One model before it is loaded."""

    path: Path
    entry: ModelEntry
    header: Header
    card: ModelCard
    offload: Offload = Offload()

    def weights(self, loading: Loading) -> Holder:
        """Return the weights' memory: as measured when they were loaded before, otherwise an upper bound."""
        nbytes = weights_nbytes(
            self.entry,
            self.header,
            file_nbytes=self.path.stat().st_size,
            loading=loading,
            copied_nbytes=kept_copied(self.path, loading),
        )
        return Holder(f"weights:{self.card.name}", nbytes)


def _has_room(budget: Budget, weights: int, entry: ModelEntry, header: Header, *, card: ModelCard) -> bool:
    """Return whether weights of this size leave room for a typical session."""
    if budget.limit_nbytes is None:
        return True
    return budget.used_nbytes + weights + session_nbytes(entry, header, card=card) <= budget.limit_nbytes


def _kv_type(entry: ModelEntry, name: str, *, needs: Collection[str]) -> str:
    """Check the needs and return the KV type: the requested one, else float32 for float32 weights, else float16."""
    if missing := sorted(set(needs) - OFFERED):
        raise CapabilityError(f"llama.cpp does not offer {', '.join(missing)} for the model {name}: use --runtime onnx")
    asked = [need.partition(":")[2] for need in needs if need.startswith("kv:")]
    if len(asked) > 1:
        raise CapabilityError(f"keys and values have one type, not {' and '.join(sorted(asked))}")
    kv_type = asked[0] if asked else EXACT if entry.bits == 32 else "float16"
    if kv_type == "int8" and entry.head_size % INT8_BLOCK:
        raise CapabilityError(
            f"int8 keys and values need heads of a multiple of {INT8_BLOCK}; the model {name} has {entry.head_size}"
        )
    return kv_type


def _adapted(header: Header, *, name: str, needs: Collection[str]) -> tuple[str, ...]:
    """Return the projections that adapters may change. Raises CapabilityError if adapters are needed and none may."""
    modules = lora_modules(list(lora_projections(header)))
    if ADAPTERS in needs and not modules:
        raise CapabilityError(
            f"the model {name} ({header.architecture}) cannot use PEFT adapters on llama.cpp: use --runtime onnx"
        )
    return modules


def _adapted_products(header: Header, needs: Collection[str]) -> int:
    """Return the number of products that adapters may change if adapters are needed, or 0."""
    return len([*lora_projections(header)]) if ADAPTERS in needs else 0


def _check_kind(weights: Weights, header: Header, *, name: str, needs: Collection[str]) -> None:
    """Raise unless the weights are a decoder with the header's rows; also for trees with recurrent layers."""
    if weights.rows != header.rows:
        raise ManifestError(
            f"llama.cpp finds {weights.rows} tokens in the model {name} of {header.rows} rows: export it again"
        )
    if not weights.decoder:
        raise CapabilityError(f"the model {name} ({header.architecture}) is not a decoder: it cannot be run here")
    if weights.recurrent and "tree" in needs:
        raise CapabilityError(f"the model {name} ({header.architecture}) has recurrent layers: it cannot verify trees")


def _recurrent_notes(weights: Weights, header: Header, *, name: str, snapshots: int) -> tuple[str, ...]:
    """Return notes on how a model with recurrent layers rolls back, or that it cannot."""
    if not weights.recurrent:
        return ()
    if snapshots:
        size = format_nbytes(header.recurrent_nbytes)
        return (f"Recurrent layers: drafts are rolled back with {snapshots} snapshots of at most {size} each.",)
    logging.getLogger("edgedecode").info("%s has recurrent layers: it is decoded without drafts", name)
    return (
        "Recurrent layers whose memory is too large, or of unknown size, for snapshots: decoding without drafts only.",
    )
