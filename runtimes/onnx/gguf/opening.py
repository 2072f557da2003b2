"""Opens the GGUF file of a pack without graphs: its graph is built in memory and always run by our own kernels."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.adapters.gguf_adapter import LORA_RANK, lora_modules, lora_projections
from edgedecode.engines.interface import ADAPTERS, HIDDEN_ROWS, SQUARES
from edgedecode.errors import ManifestError
from edgedecode.gguf.architectures import BY_NAME, HEADS
from edgedecode.gguf.contents import BLOCKS, TYPE_NAMES
from edgedecode.gguf.header import header_of
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.entries import DRAFTING_HEAD, GGUF
from edgedecode.pack.manifest import Graph, ModelEntry

from ..graph_session import FULL_BIAS, SCALARS, TARGET_CACHES
from ..kernels.block_types import matrix_of
from ..kernels.products import NotServed, Stored
from .metadata import read_metadata
from .weights import GgufWeights

_BASE = Graph("", (*SCALARS, FULL_BIAS), ("logits",), ("tree", "rows", GGUF))
_LAYER_NBYTES = 1 << 16
"""More than the nodes and norms of a layer take."""


def with_gguf_graph(entry: ModelEntry, root: Path) -> ModelEntry:
    """Return the entry with the graphs that its GGUF file takes the place of."""
    path = root / entry.gguf
    metadata = read_metadata(path)
    window = metadata.window if metadata.name in (*BY_NAME, *HEADS) else 0  # others are refused
    base = replace(_BASE, file=entry.gguf)
    if metadata.is_head:
        return replace(entry, graphs={"base": replace(base, capabilities=("rows", GGUF, DRAFTING_HEAD))}, window=window)
    modules = lora_modules(list(lora_projections(header_of(metadata.contents, path))))
    graphs = {
        "base": base,
        "lora": replace(_more(base, ADAPTERS), lora_rank=LORA_RANK, lora_modules=modules),
        "squares": _more(base, SQUARES),
        "hidden": _more(base, HIDDEN_ROWS),
    }
    layers = metadata.every_layer if metadata.name in BY_NAME else []
    shared = any(layer.source != index for index, layer in enumerate(layers))
    if not layers or (
        not shared and len({(layer.kv_heads, layer.head_size) for layer in layers if layer.kv_heads}) == 1
    ):
        graphs["kv8"] = replace(base, kv_type="int8")  # its scales are measured in one array
    return replace(entry, graphs=graphs, window=window)


def _more(graph: Graph, capability: str) -> Graph:
    return replace(graph, capabilities=(*graph.capabilities, capability))


def gguf_fault(entry: ModelEntry, root: Path) -> str:
    """Return why our kernels cannot run the entry's GGUF file here; empty: they can."""
    try:
        gguf_graph(entry, root / entry.gguf, _BASE, digest="", findings={})
    except NotServed as error:
        return f"{Path(entry.gguf).name}: {error}"
    return ""


def gguf_graph(
    entry: ModelEntry,
    path: Path,
    graph: Graph,
    *,
    digest: str,
    findings: Mapping[str, int],
    given: Stored | None = None,
    every_row: bool = False,
) -> tuple[GraphFile, GgufWeights]:
    """Return one of the entry's graphs of the file at `path`, and the weights that it reads. Raises NotServed.

    digest: the file's, under which `measure_scales` keeps the scales of 8-bit keys and values. given: the target's
    embedding, for a drafting head. every_row: see `build_graph`.
    """
    from .network import build_graph

    metadata = read_metadata(path)
    if metadata.is_head:
        from .head_network import HeadNetwork, HeadWeights

        wide = metadata.integer("target_hidden_size") if metadata.is_assistant else metadata.hidden
        own = HeadWeights(path, metadata.contents, findings=findings, given=given, hidden=wide)
        if metadata.is_assistant:
            from .assistant_network import AssistantNetwork

            return AssistantNetwork.graph(metadata, own, context=1), own
        if metadata.is_block:
            from .block_network import BlockNetwork

            return BlockNetwork.graph(metadata, own, context=entry.context), own
        return HeadNetwork.graph(metadata, own, context=entry.context), own
    if metadata.name not in BY_NAME:
        raise NotServed(f"the architecture {metadata.name[:40]!r} is none of {', '.join(sorted(BY_NAME))}")
    try:
        weights = GgufWeights(path, metadata.contents, findings=findings)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}): put it back, or name another file") from None
    scales = None
    if graph.kv_type == "int8":  # its modules take 3 MB, which the plan of a float cache does not hold
        from .kv_scales import scales_of

        scales = scales_of(digest, path, metadata)
    file = build_graph(
        metadata,
        weights,
        context=entry.context,
        adapters=ADAPTERS in graph.capabilities,
        squares=SQUARES in graph.capabilities,
        hidden=HIDDEN_ROWS in graph.capabilities,
        every_row=every_row,
        kv_scales=scales,
    )
    weights.release()
    return file, weights


def assistants_caches(path: Path) -> dict[str, str]:
    """Return the caches of the file's graph that an assistant reads, by its inputs: the last ones of both kinds."""
    found, layers = dict[str, str](), read_metadata(path).every_layer
    for window, names in enumerate(TARGET_CACHES):
        own = [index for index, each in enumerate(layers) if each.source == index and each.window == bool(window)]
        found |= {name: f"{own[-1]}.{part}" for name, part in zip(names, ("key", "value"), strict=True) if own}
    return found


def gguf_graph_nbytes(entry: ModelEntry) -> int:
    """Return the size of the graph that `gguf_graph` makes: rotary tables, norms and nodes."""
    known = BY_NAME.get(entry.architecture)
    tables = 0 if known is not None and known.rotated_by_pass else 2 * 4 * entry.context * entry.head_size
    return tables + _LAYER_NBYTES * entry.layers


def served_types() -> list[str]:
    """Return the names of the types of matrices that our kernels run."""
    return [TYPE_NAMES[kind] for kind in TYPE_NAMES if _has_tiles(kind)]


def _has_tiles(kind: int) -> bool:
    block, nbytes = BLOCKS[kind]
    try:
        matrix_of(kind, np.zeros((1, max(1, _LARGEST_BLOCK // block) * nbytes), np.uint8))
    except NotServed:
        return False
    return True


_LARGEST_BLOCK = 256
