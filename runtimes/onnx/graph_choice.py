"""Which of a model's graphs is opened: the smallest that offers what is asked for. Opens nothing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from edgedecode.engines.interface import NO_MMAP, NO_REPACK
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.pack.manifest import Graph, ModelEntry

__all__ = ["INT8_KV", "choose_graph", "file_nbytes"]

INT8_KV = "kv:int8"
_KV = "kv:"
_EXPORTED_AS = {"hidden": "hidden", "lora": "lora", INT8_KV: "kv8"}
"""The graph that offers a need, by its name in `export --graphs`."""


def choose_graph(entry: ModelEntry, root: Path, *, name: str, needs: Collection[str]) -> Graph:
    """Return the graph with the fewest capabilities beside `needs`, of several the smallest file.

    A graph with 8-bit keys and values is taken where they are asked for and nowhere else: they round. Raises
    CapabilityError that says what is there and how to export what is not.
    """
    if not entry.graphs:
        raise CapabilityError(
            f"the pack holds no ONNX graphs of the model {name}: export it with --formats onnx,gguf, "
            f"or use --runtime llama"
        )
    if loading := sorted({NO_MMAP, NO_REPACK} & set(needs)):
        raise CapabilityError(
            f"ONNX Runtime loads weights in one way: leave out --{loading[0]}, or use --runtime llama"
        )
    asked = {need for need in needs if need.startswith(_KV)}
    kv_types = {need.removeprefix(_KV) for need in asked} or {"float32"}
    wanted = set(needs) - asked
    serving = [
        graph for graph in entry.graphs.values() if {graph.kv_type} == kv_types and wanted <= set(graph.capabilities)
    ]
    if not serving:
        raise CapabilityError(_refusal(entry, name, needs=needs))
    return min(serving, key=lambda graph: (len(set(graph.capabilities) - wanted), file_nbytes(root / graph.file)))


def file_nbytes(path: Path) -> int:
    """Return a file's size. Raises ManifestError where it cannot be read."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}): export or import the pack again") from None


def _refusal(entry: ModelEntry, name: str, *, needs: Collection[str]) -> str:
    offered = "; ".join(
        f"{graph_name}: {', '.join(graph.capabilities)}, {graph.kv_type} KV"
        for graph_name, graph in entry.graphs.items()
    )
    exported = [_EXPORTED_AS[need] for need in _EXPORTED_AS if need in needs]
    several = "" if len(exported) + ("trim" in needs) < 2 else " (no one graph offers them together)"
    way_out = f"export the pack again with --graphs {','.join(['base', *exported])}"
    if "trim" in needs:
        way_out = "leave out one of them" if several else "`edgedecode trim PACK` adds one"
    elif not exported:
        way_out = "leave it to the default"
    return (
        f"the pack's {name} has no graph that offers {' and '.join(sorted(needs)) or 'float32 KV'}{several}; it has "
        f"{offered}: {way_out}"
    )
