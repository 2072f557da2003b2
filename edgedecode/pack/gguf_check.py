"""Checks that a GGUF file holds the model that a manifest entry declares."""

from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.gguf.gguf_names import gguf_name
from edgedecode.gguf.header import Header
from edgedecode.pack.manifest import ModelEntry


def check_header(header: Header, entry: ModelEntry, *, path: Path) -> None:
    """Raise ManifestError unless the file's model has the entry's architecture and sizes."""
    wanted = gguf_name(entry.architecture)
    if wanted is not None and wanted != header.architecture:
        raise ManifestError(
            f"{path} has the architecture {header.architecture!r}, the manifest says {entry.architecture}: export the "
            f"pack again"
        )
    pairs = {
        "rows": (header.rows, entry.rows),
        "layers": (header.layers, entry.layers),
        "hidden size": (header.hidden_size, entry.hidden_size),
        "KV heads": (header.kv_heads, entry.kv_heads),
        "head size": (header.head_size, entry.head_size),
    }
    for name, (found, declared) in pairs.items():
        if found not in (declared, 0):  # recurrent models have no heads
            raise ManifestError(f"{path} has {name} {found}, the manifest says {declared}: export the pack again")
