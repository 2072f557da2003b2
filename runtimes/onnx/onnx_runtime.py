"""The ONNX Runtime engine as a `Runtime`: list its devices and open a pack's models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.model import LanguageModel, LowRank, ModelCard
from edgedecode.engines.engine_factory import GraphKernels, Refusal
from edgedecode.engines.interface import HIDDEN_ROWS, INT8_KV, SQUARES, Device, ModelFootprint, ModelRequest
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Holder
from edgedecode.memory.process_memory import release_pages
from edgedecode.pack.entries import DRAFTING_HEAD, GGUF, STATIC
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.sampling.row_draw import RowDraw

from ..threads import check_threads, default_threads, most_threads
from .buffers import buffers_nbytes, logits_nbytes
from .graph_choice import choose_graph, file_nbytes, graph_nbytes, is_gguf, with_graph
from .graph_session import HIDDEN_INPUT, ROW_NUMBERS, TARGET_CACHES, OwnKernels, check_contract, open_session
from .kernels.draw import NativeRowDraw
from .kernels.rewriting import GIVEN_TILES
from .kernels.serving import Served, explain, given_table, serve
from .kernels.thread_choice import kept_choice, kept_threads
from .kernels.trial import kernels_line, load_kernels
from .onnx_engine import engine_version, import_engine
from .onnx_footprint import Footprint, code_holders, planned, rows_per_pass
from .onnx_model import OnnxModel
from .onnx_state import position_nbytes, state_holders
from .providers.provider import Provider, choose_provider, every_provider, find_provider
from .recurrence import SLOTS

if TYPE_CHECKING:
    from edgedecode.engines.native_model import NativeModel

    from .gguf.pass_values import PassValues
    from .static.static_open import StaticGraph

GRAPH_COPIES = 4
"""Peak copies of a graph while it is rewritten: its bytes, its tensors twice, the new graph. Two of them stay."""


class OnnxRuntime:
    """Implements `Runtime`. Creating one imports the engine; raises RuntimeUnavailable if it is not installed.

    A role has several graphs over one weights file, and only one of them is opened: the engine packs the weights per
    session, so a second session over the same file would hold them twice.
    """

    serves_heads = True

    def __init__(self) -> None:
        self._engine = import_engine()

    @property
    def name(self) -> str:
        return "onnx"

    @staticmethod
    def engine_version() -> str | None:
        """Return onnxruntime's version, and the name of our kernels if they are used; None: it is not installed.

        Cached measurements of the engine are stored under it. Raises InputError for an invalid `EDGEDECODE_KERNELS`.
        """
        if (version := engine_version()) is None:
            return None
        library = load_kernels()
        return version if library is None else f"{version} with {library.instruction_set} kernels"

    @staticmethod
    def refusal(entry: ModelEntry, root: Path, *, name: str, provider: str, needs: Collection[str]) -> Refusal | None:
        """Return why `open` would refuse a model before opening a session; None if it would not."""
        try:
            found = find_provider(provider)
            if problem := found.problem():
                return Refusal(problem)
            entry = with_graph(entry, root)
            graph = choose_graph(entry, root, name=name, needs=(*needs, *found.needs))
            _check_gguf(graph, found)
            if GGUF in graph.capabilities:
                from .gguf.opening import gguf_fault

                if fault := gguf_fault(entry, root):
                    return Refusal(fault, told=True)
        except CapabilityError as error:
            return Refusal(str(error))
        reason = found.refusal(entry, graph)
        return Refusal(reason) if reason else None

    @staticmethod
    def graph_kernels(entry: ModelEntry, root: Path) -> Sequence[GraphKernels]:
        """Return which kernels run each graph of a model on the processor."""
        entry = with_graph(entry, root)
        graphs = {"base": entry.graphs["base"]} if is_gguf(entry) else entry.graphs  # a file's have one network
        return [explain(entry, root, name=name, graph=graph) for name, graph in graphs.items()]

    @staticmethod
    def block_types() -> Collection[str]:
        """Return the types of matrices in GGUF files that our kernels run."""
        from .gguf.opening import served_types

        return served_types()

    def row_draw(self) -> RowDraw | None:
        """Return the native sampler; None if there is no kernel library, or the engine's kernels were chosen."""
        library = load_kernels()
        return None if library is None else NativeRowDraw(library.handle)

    def devices(self) -> Sequence[Device]:
        """Return the devices of every installed provider, and why those of others cannot be used."""
        version = str(self._engine.__version__)
        return [
            device for provider in every_provider() for device in provider.devices(runtime=self.name, version=version)
        ]

    def open(self, request: ModelRequest) -> LanguageModel:
        request = _located(request)
        entry, name, budget, threads = request.entry, request.name, request.budget, request.threads
        if INT8_KV in request.needs and is_gguf(entry) and "kv8" in entry.graphs:  # not of a drafting head
            from .gguf.kv_scales import measure_scales

            measure_scales(request, self.open)
        found = self._find(request)
        graph, served, footprint = found.graph, found.served, found.footprint
        with ExitStack() as undo:  # releases every lease if a later step fails
            for holder in code_holders(found.provider):
                undo.enter_context(budget.reserve_for_process(holder))
            fixed = name == "target"
            leases = [
                undo.enter_context(budget.reserve(holder.name, holder.nbytes, fixed=fixed))
                for holder in footprint.loaded(name)
            ]
            if found.static:
                from .static.static_open import open_static

                model = open_static(
                    self._engine,
                    request,
                    found.static,
                    provider=found.provider,
                    threads=found.threads,
                    card=replace(found.card, threads=found.threads),
                    leases=leases,
                )
                undo.pop_all()
                return model
            own = None
            tiles: dict[str, npt.NDArray[np.uint8]] = {}
            table, given = None, given_table(request.beside)
            if served is not None:
                tiles = served.tiles()
                table = served.table(tiles)
                if given is not None:
                    tiles |= {GIVEN_TILES: given.tiles}
                own = OwnKernels(served.library.path, served.rewritten.data, in_order=SQUARES in graph.capabilities)
            invariant = found.card.row_invariant
            session = open_session(
                found.path,
                weights=request.root / entry.weights,
                provider=found.provider,
                data=found.provider.rewritten(found.path),
                threads=1 if invariant else found.threads,  # two thread pools would wait for each other
                own=own,
                limit_nbytes=None if budget.limit is None else footprint.arena_nbytes(logits_row_nbytes=4 * entry.rows),
                region_nbytes=footprint.workspace_nbytes,
            )
            replaced = None if served is None else served.rewritten.biases
            check_contract(session, entry, graph, path=found.path, replaced=replaced)
            chooses = threads is None and found.chooses_threads
            card = replace(found.card, threads=most_threads() if chooses else found.threads)
            inputs = [value.name for value in session.get_inputs()]
            model = _kind_of(found, inputs)(
                self._engine,
                provider=found.provider,
                tiles=tiles,
                tiled=own is not None,
                use_threads=None if served is None else served.library.use_threads,
                session=session,
                entry=entry,
                card=card,
                footprint=footprint,
                budget=budget,
                leases=leases,
                table=table,
                features=() if served is None else served.features,
                values=_pass_values(found, inputs),
                shared=_assistants_caches(found) if request.taps and request.taps[0] > entry.layers else {},
            )
            undo.pop_all()
        if GGUF in found.graph.capabilities:
            release_pages()  # of the graph that was made in memory
        if chooses:
            model.choose_threads(self._kept_choice(found), otherwise=found.threads)
        return model

    def footprint(self, request: ModelRequest) -> ModelFootprint:
        """Return a model's memory. Nothing is loaded, but its graph is read."""
        request = _located(request)
        found = self._find(request)
        chooses = request.threads is None and found.chooses_threads
        threads = kept_threads(self._kept_choice(found)) or None if chooses else found.threads
        found = found._replace(card=replace(found.card, threads=threads))
        loaded = (*code_holders(found.provider), *found.footprint.loaded(request.name))
        if found.static:
            from .static.static_open import static_footprint

            return static_footprint(request.entry, found.card, found.static, loaded)
        buffers = Holder(f"buffers:{request.name}", buffers_nbytes(found.footprint, found.card.context))
        holders = partial(state_holders, request.entry, found.card, found.footprint, tiled=found.served is not None)
        if DRAFTING_HEAD in found.graph.capabilities:
            from .gguf.head_file import head_holders

            row = logits_nbytes(1, rows=found.card.rows, copies=found.footprint.logits_copies)
            holders = partial(holders, more=head_holders(found.path, logits_row_nbytes=row))
        return ModelFootprint(found.card, (*loaded, buffers), holders)

    def native_model(
        self, request: ModelRequest, folder: Path, adapters: Mapping[str, Sequence[LowRank]] | None = None
    ) -> "NativeModel":
        """Implements `NativeRuntime`."""
        from .kernels.native_files import write_model  # late: only a package is made so

        request = _located(request)
        if INT8_KV in request.needs and is_gguf(request.entry) and "kv8" in request.entry.graphs:
            from .gguf.kv_scales import measure_scales

            measure_scales(request, self.open)
        graph = choose_graph(request.entry, request.root, name=request.name, needs=request.needs)
        return write_model(request, graph, _card(request, graph), folder, adapters or {})

    def _kept_choice(self, found: "_Found") -> Path | None:
        """Return the cache file with the fastest number of threads; None if it cannot be cached."""
        if found.served is None:
            return None
        build = str(found.served.library.path.stat().st_mtime_ns)
        return kept_choice([found.served.digest, found.graph.file, str(self.engine_version()), build])

    def _find(self, request: ModelRequest) -> "_Found":
        """Choose the provider and the graph, and plan the model."""
        entry, root, name = request.entry, request.root, request.name
        provider = choose_provider(request.provider)
        check_threads(request.threads)
        graph = choose_graph(entry, root, name=name, needs=(*request.needs, *provider.needs))
        if reason := provider.refusal(entry, graph):
            raise CapabilityError(f"the provider {provider.full_name} cannot run the {name}: {reason}")
        _check_gguf(graph, provider)
        path = root / graph.file
        threads = request.threads or default_threads(file_nbytes(root / entry.weights))
        served: Served | None = None
        hidden = HIDDEN_ROWS in request.needs and GGUF not in graph.capabilities
        unserved = f"the {name} gives hidden states only where our kernels run it, on the provider cpu"
        if hidden and not provider.own_kernels:
            raise CapabilityError(unserved)
        if STATIC in graph.capabilities:
            from .static.static_open import plan_static, static_card, whole_footprint

            card = _card(request, graph)
            with request.budget.reserve(f"graph:{name}", GRAPH_COPIES * file_nbytes(path)):
                static = plan_static(entry, root, graph, provider)
            card, footprint = static_card(card, static), whole_footprint(static)
            return _Found(provider, graph, path, threads, served, footprint, card, static)
        with request.budget.reserve(f"graph:{name}", GRAPH_COPIES * graph_nbytes(entry, graph, root)):
            if provider.own_kernels:
                rows = rows_per_pass(entry, adapters="lora" in graph.capabilities)
                served = serve(
                    entry,
                    graph,
                    root=root,
                    threads=request.threads or most_threads(),
                    rows=rows,
                    taps=request.taps,
                    hidden=hidden,
                    beside=request.beside,
                )
            footprint = planned(entry, graph, path, served)
            if DRAFTING_HEAD in graph.capabilities:
                from .gguf.markov_rows import chain_nbytes

                footprint = replace(footprint, weights_nbytes=footprint.weights_nbytes + chain_nbytes(path))
        if hidden and served is None:
            raise CapabilityError(f"{unserved} (`edgedecode devices -m PACK` says why)")
        if most := provider.most_rows():
            footprint = replace(footprint, rows_per_pass=min(most, footprint.rows_per_pass))
        card = replace(
            _card(request, graph),
            kernel_noise=entry.kernel_noise if provider.manifest_noise else None,
            row_invariant=served is not None and served.rewritten.row_invariant,
            kernels="" if served is None else served.library.instruction_set,
            weights_nbytes=footprint.weights_nbytes,
            kv_nbytes=position_nbytes(footprint.caches, kv_type=graph.kv_type),
            tree_rows=SLOTS if footprint.recurrent else 0,
        )
        return _Found(provider, graph, path, threads, served, footprint, card)


class _Found(NamedTuple):
    """One model before its session is opened."""

    provider: Provider
    graph: Graph
    path: Path
    threads: int
    """The engine's threads, unless they are measured."""
    served: Served | None
    footprint: Footprint
    card: ModelCard
    static: "tuple[StaticGraph, ...]" = ()
    """The graphs of each width, if they are static."""

    @property
    def chooses_threads(self) -> bool:
        """Whether threads are measured if none are requested: only with our kernels, and weights of a known digest."""
        return self.served is not None and self.card.row_invariant and self.served.digest != ""


def _located(request: ModelRequest) -> ModelRequest:
    """Return the request with the graph of a GGUF file, if the pack has none."""
    return replace(request, entry=with_graph(request.entry, request.root))


def _check_gguf(graph: Graph, provider: Provider) -> None:
    """Raise CapabilityError for a GGUF file where our kernels do not run."""
    if GGUF not in graph.capabilities:
        return
    if not provider.own_kernels:
        raise CapabilityError(f"the provider {provider.full_name} runs no GGUF files: use --provider cpu")
    if load_kernels() is None:
        raise CapabilityError(f"GGUF files run with edgedecode's kernels only ({kernels_line()}): use --runtime llama")


def _pass_values(found: _Found, inputs: Sequence[str]) -> "PassValues | None":
    """Return what the graph reads in each pass besides tokens; None: nothing."""
    if ROW_NUMBERS not in inputs:
        return None
    from .gguf.pass_values import PassValues

    return PassValues(found.path, inputs)


def _assistants_caches(found: _Found) -> dict[str, str]:
    from .gguf.opening import assistants_caches

    return assistants_caches(found.path)


def _kind_of(found: _Found, inputs: Sequence[str]) -> Callable[..., OnnxModel]:
    if DRAFTING_HEAD not in found.graph.capabilities:
        return OnnxModel
    from .head_model import AssistantModel, BlockModel, HeadModel

    if HIDDEN_INPUT not in inputs:
        return partial(BlockModel, path=found.path)
    return AssistantModel if TARGET_CACHES[0][0] in inputs else HeadModel


def _card(request: ModelRequest, graph: Graph) -> ModelCard:
    """Return the card as far as the manifest determines it."""
    entry, ids, size = request.entry, None, min(request.entry.rows, request.vocabulary_size)
    if graph.token_ids:
        from edgedecode.pack.token_map import read_token_ids

        size = request.vocabulary_size
        ids = read_token_ids(request.root / graph.token_ids, rows=entry.rows, vocabulary_size=size).ids
    if DRAFTING_HEAD in graph.capabilities:
        from .gguf.head_file import head_ids

        size = request.vocabulary_size
        ids = head_ids(request.root / graph.file, rows=entry.rows, vocabulary_size=size)
    return ModelCard(
        name=request.name,
        rows=entry.rows,
        vocabulary_size=size,
        context=entry.context,
        tree="tree" in graph.capabilities,
        hidden=HIDDEN_ROWS in request.needs,
        kv_type=graph.kv_type,
        lora_rank=graph.lora_rank,
        lora_modules=graph.lora_modules,
        token_ids=ids,
        notes=entry.notes,
    )
