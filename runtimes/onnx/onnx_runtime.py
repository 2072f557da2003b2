"""The ONNX Runtime engine as a `Runtime`: lists its devices and opens a pack's models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.model import LanguageModel, ModelCard
from edgedecode.decoding.row_draw import RowDraw
from edgedecode.engines.engine_factory import GraphKernels, Refusal
from edgedecode.engines.interface import Device, ModelRequest
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import Graph, ModelEntry

from ..threads import check_threads, default_threads, most_threads
from .concat.concat_model import CONCAT, ConcatModel
from .graph_choice import choose_graph, file_nbytes
from .graph_session import OwnKernels, check_concat_contract, check_contract, import_engine, open_session
from .kernels.draw import NativeRowDraw
from .kernels.serving import Served, explain, serve
from .kernels.thread_choice import kept_choice
from .kernels.trial import kernels_line, load_kernels
from .onnx_footprint import ENGINE_NBYTES, Footprint, plan_footprint, plan_own_footprint, rows_per_pass, widen_footprint
from .onnx_model import OnnxModel
from .providers import PROVIDERS, Provider, choose_provider
from .trimmed_head import read_trimmed

__all__ = ["OnnxRuntime"]

GRAPH_COPIES = 4
"""A graph's bytes, its tensors' own and as they were written, and the rewritten graph; two of them stay."""
DISTRIBUTIONS = tuple(f"onnxruntime{suffix}" for suffix in ("", "-gpu", "-directml", "-openvino", "-qnn"))
"""Every one brings the same module."""


class OnnxRuntime:
    """Implements `Runtime`. Making one imports the engine; raises RuntimeUnavailable when it is not installed.

    A role has several graphs over one weights file, and one of them is opened: the engine packs a session's weights for
    itself, so a second session over the same file would hold them twice.
    """

    def __init__(self) -> None:
        self._engine = import_engine()
        self._code: WeakKeyDictionary[Budget, Lease] = WeakKeyDictionary()
        """Per budget: the engine's own pages. They stay while the process lives, so this lease outlives the models."""

    @property
    def name(self) -> str:
        return "onnx"

    @staticmethod
    def engine_version() -> str | None:
        """Return onnxruntime's version, whichever of its distributions is installed, and our kernels where they run.

        What is measured of an engine is kept under it. Raises InputError for an impossible `EDGEDECODE_KERNELS`.
        """
        if find_spec("onnxruntime") is None:
            return None
        library = load_kernels()
        kernels = "" if library is None else f" with {library.instruction_set} kernels"
        for name in DISTRIBUTIONS:
            with suppress(PackageNotFoundError):
                return version(name) + kernels
        return f"unknown{kernels}"

    @staticmethod
    def refusal(entry: ModelEntry, root: Path, *, name: str, provider: str, needs: Collection[str]) -> Refusal | None:
        """Say what `open` would refuse of a model before it opens a session."""
        known = [each.name for each in PROVIDERS]
        if provider not in known:
            return Refusal(f"ONNX Runtime has no provider {provider!r}; it has: {', '.join(known)}")
        try:
            choose_graph(entry, root, name=name, needs=needs)
        except CapabilityError as error:
            return Refusal(str(error))
        return None

    @staticmethod
    def graph_kernels(entry: ModelEntry, root: Path) -> Sequence[GraphKernels]:
        """Say which kernels run each graph of a model on the processor."""
        reason = "ONNX Runtime's own kernels: the graph joins past and present itself"
        return [
            GraphKernels(name, "", reason)
            if CONCAT in graph.capabilities
            else explain(entry, root, name=name, graph=graph)
            for name, graph in entry.graphs.items()
        ]

    def row_draw(self) -> RowDraw | None:
        """Return the library's drawing of tokens; None where it is not here or the engine's kernels were chosen."""
        library = load_kernels()
        return None if library is None else NativeRowDraw(library.handle)

    def devices(self) -> Sequence[Device]:
        """Return every provider this runtime knows, and whether this installation has it."""
        installed: Sequence[str] = self._engine.get_available_providers()
        return [
            Device(
                runtime=self.name,
                provider=provider.name,
                description=f"{provider.description}, onnxruntime {self._engine.__version__}{_kernels(provider)}",
                available=provider.engine_name in installed,
                reason="" if provider.engine_name in installed else f"this onnxruntime has no {provider.engine_name}",
            )
            for provider in PROVIDERS
        ]

    def open(self, request: ModelRequest) -> LanguageModel:
        entry, root, name, budget, threads = request.entry, request.root, request.name, request.budget, request.threads
        chosen = choose_provider(request.provider, installed=self._engine.get_available_providers())
        check_threads(threads)
        graph = choose_graph(entry, root, name=name, needs=request.needs)
        path, weights = root / graph.file, root / entry.weights
        engine_threads = threads or default_threads(file_nbytes(weights))
        concat = CONCAT in graph.capabilities
        served: Served | None = None
        if chosen.own_kernels and not concat:
            rows = rows_per_pass(entry, adapters="lora" in graph.capabilities)
            with budget.reserve(f"graph:{name}", GRAPH_COPIES * file_nbytes(path)):
                served = serve(entry, path, root=root, threads=threads or most_threads(), rows=rows)
        footprint = _planned(entry, graph, root, served)
        with ExitStack() as undo:  # gives every lease back when a later step fails
            code = self._code.get(budget) or undo.enter_context(
                budget.reserve("engine code", ENGINE_NBYTES, fixed=True)
            )
            fixed = name == "target"
            leases = [
                undo.enter_context(budget.reserve(f"weights:{name}", footprint.weights_nbytes, fixed=fixed)),
                undo.enter_context(budget.reserve(f"workspace:{name}", footprint.workspace_nbytes, fixed=fixed)),
            ]
            own, invariant, digest = None, False, ""
            tiles: Mapping[str, npt.NDArray[np.uint8]] = {}
            if served is not None:
                invariant, digest = served.rewritten.row_invariant, served.digest
                tiles = served.tiles()
                own = OwnKernels(served.library.path, served.rewritten.data)
            session = open_session(
                path,
                weights=weights,
                provider=chosen,
                threads=1 if invariant else engine_threads,  # two pools would wait for each other
                own=own,
                limit_nbytes=_free_nbytes(budget, leases),
            )
            chooses = invariant and threads is None and digest != ""
            if concat:
                check_concat_contract(session, entry, path=path)
            else:
                replaced = None if served is None else served.rewritten.biases
                check_contract(session, entry, graph, path=path, replaced=replaced)
            card = replace(
                _card(entry, graph, name=name, vocabulary_size=request.vocabulary_size),
                row_invariant=invariant,
                kernels="" if served is None else served.library.instruction_set,
                weights_nbytes=footprint.weights_nbytes,
                threads=most_threads() if chooses else engine_threads,
            )
            make: Callable[..., LanguageModel] = (
                ConcatModel
                if concat
                else partial(
                    OnnxModel,
                    trimmed=read_trimmed(
                        session, entry=entry, graph=graph, root=root, vocabulary_size=card.vocabulary_size
                    ),
                    tiles=tiles,
                    tiled=own is not None,
                    use_threads=None if served is None else served.library.use_threads,
                )
            )
            model = make(
                self._engine,
                session=session,
                entry=entry,
                card=card,
                footprint=footprint,
                budget=budget,
                leases=leases,
            )
            undo.pop_all()
            self._code[budget] = code
        if chooses and served is not None and isinstance(model, OnnxModel):
            build = str(served.library.path.stat().st_mtime_ns)
            kept = kept_choice([digest, graph.file, str(self.engine_version()), build])
            model.choose_threads(kept, otherwise=engine_threads)
        return model


def _planned(entry: ModelEntry, graph: Graph, root: Path, served: Served | None) -> Footprint:
    """Return what the model takes, with our kernels or the engine's."""
    sizes = {"weights_nbytes": file_nbytes(root / entry.weights), "graph_nbytes": file_nbytes(root / graph.file)}
    adapters = "lora" in graph.capabilities
    if served is None:
        footprint = plan_footprint(entry, **sizes, adapters=adapters)
        return widen_footprint(footprint, entry) if CONCAT in graph.capabilities else footprint
    return plan_own_footprint(
        entry,
        **sizes,
        tiles_nbytes=served.nbytes,
        scratch_nbytes=served.scratch_nbytes,
        adapters=adapters,
        all_ours=served.rewritten.row_invariant,
    )


def _card(entry: ModelEntry, graph: Graph, *, name: str, vocabulary_size: int) -> ModelCard:
    """Return what the manifest says of the model; how it runs here is not in it."""
    return ModelCard(
        name=name,
        rows=entry.rows,
        vocabulary_size=min(entry.rows, vocabulary_size),
        context=entry.context,
        tree="tree" in graph.capabilities,
        kv_type=graph.kv_type,
        hidden_size=entry.hidden_size if "hidden" in graph.capabilities else 0,
        lora_rank=graph.lora_rank,
        lora_modules=graph.lora_modules,
        kernel_noise=entry.kernel_noise,
        notes=entry.notes,
    )


def _free_nbytes(budget: Budget, own: Sequence[Lease]) -> int | None:
    """Return what a budget leaves to the holder of these leases; None: it has no limit."""
    if budget.limit_nbytes is None:
        return None
    return budget.limit_nbytes - budget.used_nbytes + sum(lease.nbytes for lease in own)


def _kernels(provider: Provider) -> str:
    return f"; {kernels_line()}" if provider.own_kernels else ""
