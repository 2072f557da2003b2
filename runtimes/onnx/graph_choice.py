"""Choose which of a model's graphs to open: the smallest that offers all needs."""

from collections.abc import Collection
from pathlib import Path

from edgedecode.engines.interface import HIDDEN_ROWS, INT8_KV, NO_MMAP, NO_REPACK
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.pack.entries import GGUF, STATIC, TRIM
from edgedecode.pack.manifest import Graph, ModelEntry

_KV = "kv:"
_EXPORTED_AS = {"lora": "lora", INT8_KV: "kv8"}
"""Needs by the name of the graph in `export --graphs` that offers them."""


def choose_graph(entry: ModelEntry, root: Path, *, name: str, needs: Collection[str]) -> Graph:
    """Return the graph with the fewest capabilities besides `needs`, and of several the smallest file.

    A graph with 8-bit keys and values, which are rounded, or with fixed shapes is only chosen on request. Hidden states
    are added to an exported graph when it is rewritten.

    Raises CapabilityError with the graphs of the pack and how to export the missing one.
    """
    if not entry.graphs:
        raise CapabilityError(
            f"the pack has no ONNX graphs of the model {name}: export it with --formats onnx,gguf, "
            f"or use --runtime llama"
        )
    if loading := sorted({NO_MMAP, NO_REPACK} & set(needs)):
        raise CapabilityError(
            f"ONNX Runtime loads weights in one way only: leave out --{loading[0]}, or use --runtime llama"
        )
    asked = {need for need in needs if need.startswith(_KV)}
    kv_types = {need.removeprefix(_KV) for need in asked} or {"float32"}
    wanted = set(needs) - asked - (set() if is_gguf(entry) else {HIDDEN_ROWS})
    suitable = [
        graph
        for graph in entry.graphs.values()
        if {graph.kv_type} == kv_types
        and wanted <= set(graph.capabilities)
        and (STATIC in wanted) == (STATIC in graph.capabilities)
    ]
    if not suitable:
        raise CapabilityError(_refusal(entry, name, needs=needs))
    return min(suitable, key=lambda graph: (len(set(graph.capabilities) - wanted), file_nbytes(root / graph.file)))


def with_graph(entry: ModelEntry, root: Path) -> ModelEntry:
    """Return the entry with the graph that its GGUF file takes the place of, unless the pack has graphs itself."""
    if entry.graphs or not entry.gguf:
        return entry
    from .gguf.opening import with_gguf_graph

    return with_gguf_graph(entry, root)


def is_gguf(entry: ModelEntry) -> bool:
    """Return whether a model's graphs are built from a GGUF file."""
    return any(GGUF in graph.capabilities for graph in entry.graphs.values())


def file_nbytes(path: Path) -> int:
    """Return a file's size. Raises ManifestError if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}): export or import the pack again") from None


def graph_nbytes(entry: ModelEntry, graph: Graph, root: Path) -> int:
    """Return the size of a graph's file, or of the graph that is made from a GGUF file."""
    if GGUF not in graph.capabilities:
        return file_nbytes(root / graph.file)
    from .gguf.opening import gguf_graph_nbytes

    return gguf_graph_nbytes(entry)


def _refusal(entry: ModelEntry, name: str, *, needs: Collection[str]) -> str:
    offered = "; ".join(
        f"{graph_name}: {', '.join(graph.capabilities)}, {graph.kv_type} KV"
        for graph_name, graph in entry.graphs.items()
    )
    exported = [_EXPORTED_AS[need] for need in _EXPORTED_AS if need in needs]
    several = "" if len(exported) < 2 else " (no one graph offers them together)"
    remedy = f"export the pack again with --graphs {','.join(['base', *exported])}"
    if name == TRIM:
        remedy = "use --drafter model"
    elif STATIC in needs:
        remedy = "`edgedecode compile PACK` adds them, or use --provider cpu"
    elif is_gguf(entry):
        remedy = "leave it out, as the graph is made from a GGUF file, or use --runtime llama"
    elif not exported:
        remedy = "use the default"
    return (
        f"the pack's {name} has no graph that offers {' and '.join(sorted(needs)) or 'float32 KV'}{several}; it has "
        f"{offered}: {remedy}"
    )
