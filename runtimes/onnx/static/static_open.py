"""Plans and opens the static graphs of a model: one session for each width."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

from edgedecode.decoding.model import LanguageModel, ModelCard
from edgedecode.engines.interface import ModelFootprint, ModelRequest
from edgedecode.errors import ManifestError
from edgedecode.memory.budget import Holder, Lease
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.pack.static_graphs import HEAD_ROWS, MASK, WINDOW_MASK

from ..graph_needs import measured_sizes
from ..graph_session import ADAPTER_INPUT, check_names, open_session
from ..onnx_engine import Untyped
from ..onnx_footprint import FLOAT_NBYTES, Footprint, plan_static_footprint
from ..onnx_state import position_nbytes
from ..providers.provider import Provider
from .static_model import StaticModel, static_buffers, static_holders


class StaticGraph(NamedTuple):
    """One width of a model: its graph, the files that the provider opens, and its session's memory."""

    graph: Graph
    path: Path
    weights: Path
    footprint: Footprint
    adapter_nbytes: int
    """Bytes of an adapter's matrices, which have one size; those of no adapter are zeros."""


def plan_static(entry: ModelEntry, root: Path, graph: Graph, provider: Provider) -> tuple[StaticGraph, ...]:
    """Return all widths of a model, ascending: the static graphs with the capabilities of `graph`.

    Raises ManifestError for a damaged graph, CapabilityError if the provider has no file of one.
    """
    files = partial(provider.files, entry)
    family = [each for each in entry.graphs.values() if set(each.capabilities) == set(graph.capabilities)]
    if (narrowest := min(each.width for each in family)) > HEAD_ROWS:
        raise ManifestError(
            f"the pack's narrowest static graph has {narrowest} rows, and verification needs one of at most "
            f"{HEAD_ROWS}: run `edgedecode compile` again with such a width"
        )
    return tuple(
        StaticGraph(each, root / files(each).graph, root / files(each).weights, *_measured(entry, root, each))
        for each in sorted(family, key=lambda each: each.width)
    )


def static_card(card: ModelCard, graphs: Sequence[StaticGraph]) -> ModelCard:
    """Return the model's card with the limits of its graphs."""
    widths = tuple(each.graph.width for each in graphs)
    return replace(
        card,
        context=min(card.context, graphs[0].graph.slots),
        widths=tuple(width for width in widths if width <= HEAD_ROWS),
        weights_nbytes=sum(each.footprint.weights_nbytes for each in graphs),
        kv_nbytes=position_nbytes(graphs[0].footprint.caches, kv_type="float32"),
    )


def whole_footprint(graphs: Sequence[StaticGraph]) -> Footprint:
    """Return the memory of all sessions together: each has its own copy of the packed weights."""
    parts = [each.footprint for each in graphs]
    return replace(
        parts[-1],
        weights_nbytes=sum(part.weights_nbytes for part in parts),
        workspace_nbytes=sum(part.workspace_nbytes for part in parts),
        packed_nbytes=sum(part.packed_nbytes for part in parts),
        unpacked_nbytes=sum(part.unpacked_nbytes for part in parts),
    )


def static_footprint(
    entry: ModelEntry, card: ModelCard, graphs: Sequence[StaticGraph], loaded: Sequence[Holder]
) -> ModelFootprint:
    """Return a model's memory. loaded: the holders of its sessions."""
    widths, slots = [each.graph.width for each in graphs], graphs[0].graph.slots
    buffers = Holder(f"buffers:{card.name}", static_buffers(entry, widths=widths, slots=slots).nbytes)
    nbytes = graphs[0].adapter_nbytes
    zeros = [Holder(f"adapter inputs:{card.name}", nbytes)] if nbytes else []
    return ModelFootprint(card, (*loaded, buffers, *zeros), partial(static_holders, entry, card, slots))


def open_static(
    engine: Untyped,
    request: ModelRequest,
    graphs: Sequence[StaticGraph],
    *,
    provider: Provider,
    threads: int,
    card: ModelCard,
    leases: Sequence[Lease],
) -> LanguageModel:
    """Open a session for each width. Raises as `open_session`."""
    entry, sessions = request.entry, dict[int, Untyped]()
    for graph, path, weights, footprint, _ in graphs:
        session = open_session(
            path,
            weights=weights,
            provider=provider,
            data=provider.rewritten(path),
            threads=threads,
            limit_nbytes=None
            if request.budget.limit is None
            else footprint.arena_nbytes(logits_row_nbytes=FLOAT_NBYTES * entry.rows),
            region_nbytes=footprint.workspace_nbytes,
        )
        windows = [WINDOW_MASK] if WINDOW_MASK in graph.inputs else []
        _check_contract(session, entry, path=path, width=graph.width, slots=graph.slots, windows=windows)
        sessions[graph.width] = session
    return StaticModel(
        engine,
        sessions=sessions,
        slots=graphs[0].graph.slots,
        entry=entry,
        card=card,
        footprint=whole_footprint(graphs),
        budget=request.budget,
        leases=leases,
        in_place=provider.in_place,
    )


def _measured(entry: ModelEntry, root: Path, graph: Graph) -> tuple[Footprint, int]:
    """Return the memory of a graph's session, and of an adapter's matrices."""
    path = root / graph.file
    try:
        data = path.read_bytes()
        sizes = measured_sizes(data, hidden=entry.hidden_size)
        shapes = [each.dims or () for each in GraphFile.parse(data).inputs if each.name.startswith(ADAPTER_INPUT)]
    except (OSError, ValueError, IndexError) as error:
        raise ManifestError(f"{path} cannot be read ({error}): make the pack's static graphs again") from None
    floats = sum(prod(size for size in shape if isinstance(size, int)) for shape in shapes)
    width, slots = graph.width, graph.slots
    footprint = plan_static_footprint(entry, sizes, graph_nbytes=len(data), width=width, slots=slots)
    return footprint, FLOAT_NBYTES * floats


def _check_contract(
    session: Untyped, entry: ModelEntry, *, path: Path, width: int, slots: int, windows: Sequence[str]
) -> None:
    """Raise ManifestError unless the graph has the inputs and outputs of a static one of this size."""
    adapters = [value.name for value in session.get_inputs() if value.name.startswith(ADAPTER_INPUT)]
    needed = ["input_ids", "position_ids", "rows", *windows]
    check_names(session, entry, path=path, needed=needed, more=[MASK, *adapters])
    shapes = {value.name: value.shape for value in session.get_inputs()}
    found = shapes["input_ids"][-1], shapes["past_key_values.0.key"][2]
    if found != (width, slots):
        raise ManifestError(
            f"{path} has passes of {found[0]} rows and {found[1]} past slots, the manifest says {width} and {slots}: "
            f"make the pack's static graphs again"
        )
