"""Validates the file of a compiled graph: one node that names its binary, and nothing else."""

from collections.abc import Collection
from pathlib import Path

from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node

CONTEXT = "EPContext"
_MOST_NBYTES = 1 << 20
"""Largest file without its binary; each input and output of a layer takes about 100 bytes."""
_ATTRIBUTES = frozenset(
    (
        *("ep_cache_context", "ep_sdk_version", "embed_mode", "hardware_architecture", "is_multi_soc_ep_context"),
        *("main_context", "max_size", "notes", "onnx_model_filename", "partition_name", "source"),
    )
)


def check_context(path: Path, binary: Path, *, inputs: Collection[str], outputs: Collection[str]) -> None:
    """Raise OSError or ValueError unless the file at `path` holds one compiled node that reads `binary` next to it."""
    if (nbytes := path.stat().st_size) > _MOST_NBYTES:
        raise ValueError(f"it has {nbytes} bytes, a compiled graph's file has less than {_MOST_NBYTES}")
    file = GraphFile.parse(path.read_bytes())
    node = context_node(file)
    if unknown := sorted(set(node.attributes) - _ATTRIBUTES):
        raise ValueError(f"its {CONTEXT} has the unknown attribute {unknown[0][:40]!r}")
    if node.attributes.get("embed_mode", 1) != 0 or node.attributes.get("ep_cache_context") != binary.name.encode():
        raise ValueError(f"it does not name {binary.name}")
    if binary.parent != path.parent:
        raise ValueError(f"its binary {binary} is in another folder")
    if {each.name for each in file.inputs} != {*inputs} or {each.name for each in file.outputs} != {*outputs}:
        raise ValueError("its inputs or outputs are not those of the manifest")


def context_node(file: GraphFile) -> Node:
    """Return a compiled graph's only node. Raises ValueError for any other graph."""
    kinds = [(node.domain, node.op_type) for node in file.nodes]
    if kinds != [("com.microsoft", CONTEXT)] or file.initializers:
        raise ValueError(f"it holds {len(kinds)} nodes and {len(file.initializers)} tensors, not one {CONTEXT}")
    return file.nodes[0]
