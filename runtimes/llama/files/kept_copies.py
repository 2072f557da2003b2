"""Cache how many bytes of a file's weights the engine repacks for this processor's kernels.

Which tensors it repacks depends on their types, its version and the processor. Before the first load, all of them
count.
"""

from pathlib import Path

from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.hardware import processor_facts
from edgedecode.typed_json import Count

from ..llama_engine import Loading, engine_version

FOLDER = "copies"


def kept_copied(path: Path, loading: Loading) -> int | None:
    """Return the bytes of a file's repacked copies; None if it was never loaded this way."""
    kept = _cache_path(path, loading)
    try:
        return None if kept is None else kept_json(kept, dict[str, Count])["nbytes"]
    except (OSError, ValueError, KeyError):
        return None


def keep_copied(path: Path, loading: Loading, nbytes: int) -> None:
    """Store the size that the engine reported."""
    if (kept := _cache_path(path, loading)) is not None and kept_copied(path, loading) != nbytes:
        keep_json(kept, {"nbytes": nbytes})


def _cache_path(path: Path, loading: Loading) -> Path | None:
    folder = cache_folder(FOLDER)
    if folder is None:
        return None
    file = path.stat()
    facts = (path.resolve(), file.st_size, file.st_mtime_ns, loading, engine_version(), *processor_facts())
    return folder / f"{facts_key(*facts)}.json"
