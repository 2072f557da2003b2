"""What the engine copies of a file's weights for this processor's kernels: known once it was loaded here, and kept.

Which tensors it copies depends on their types, its version and the processor. Before the first loading all of them
count.
"""

from __future__ import annotations

from pathlib import Path

from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.hardware import processor_facts
from edgedecode.typed_json import Count

from ..llama_engine import Loading, engine_version

__all__ = ["keep_copied", "kept_copied"]

FOLDER = "copies"


def kept_copied(path: Path, loading: Loading) -> int | None:
    """Return the bytes of the copies that a file's weights had here; None where it was never loaded so."""
    kept = _place(path, loading)
    try:
        return None if kept is None else kept_json(kept, dict[str, Count])["nbytes"]
    except (OSError, ValueError, KeyError):
        return None


def keep_copied(path: Path, loading: Loading, nbytes: int) -> None:
    """Keep what the engine reported."""
    if (kept := _place(path, loading)) is not None and kept_copied(path, loading) != nbytes:
        keep_json(kept, {"nbytes": nbytes})


def _place(path: Path, loading: Loading) -> Path | None:
    folder = cache_folder(FOLDER)
    if folder is None:
        return None
    file = path.stat()
    facts = (path.resolve(), file.st_size, file.st_mtime_ns, loading, engine_version(), *processor_facts())
    return folder / f"{facts_key(*facts)}.json"
