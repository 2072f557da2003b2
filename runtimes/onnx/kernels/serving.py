"""Whether a graph is opened with our kernels, and what that takes: the rewritten graph and the tiles it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedecode.manifest import ModelEntry
from edgedecode.notices import notice
from edgedecode.onnx_file import GraphFile

from .library import KernelLibrary, load_kernels
from .prepared import made_in_memory, prepare_tiles, tiles_nbytes, weights_digest
from .products import WeightsFile
from .rewriting import GRAPH_TILES, Rewritten, rewrite

__all__ = ["Served", "serve"]


@dataclass(frozen=True, slots=True)
class Served:
    """A graph that our kernels can run. The engine's threads are not used where it keeps nothing that needs them."""

    library: KernelLibrary
    rewritten: Rewritten
    nbytes: int
    """Of the tiles."""
    weights: WeightsFile
    scratch_nbytes: int
    """What the operators hold beside the engine's memory, all threads together."""

    def tiles(self, root: Path, weights: Path) -> dict[str, npt.NDArray[np.uint8]]:
        """Map or make the tiles, by the graph's input; their bytes must be leased before."""
        found = {}
        for source, stored in self.rewritten.sources().items():
            if source == GRAPH_TILES:
                found[source] = made_in_memory(self.library, stored)
            else:
                digest = weights_digest(root, weights)
                found[source] = prepare_tiles(self.library, stored, digest=digest, release=self.weights.release)
        return found


def serve(entry: ModelEntry, path: Path, *, weights: Path, threads: int, rows: int) -> Served | None:
    """Rewrite the graph at `path`; None where the engine's kernels run it, by choice or because ours cannot.

    rows: the most rows of a pass. Raises InputError for an impossible `EDGEDECODE_KERNELS`.
    """
    library = load_kernels()
    if library is None:
        return None
    try:
        file = GraphFile.parse(path.read_bytes())
        mapped = WeightsFile(weights)
        rewritten = rewrite(file, library, mapped, window=entry.window, threads=threads)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
        AssertionError,
    ) as error:  # the engine opens it, or says what is wrong with it
        notice(f"{path} stays with the engine's kernels: {error}")
        return None
    if rewritten is None or not rewritten.stored:
        return None
    for reason, count in rewritten.unserved.items():
        notice(f"{count} products of {path.parent.name}/{path.name} stay with the engine's kernels: {reason}")
    widest = max(stored.matrix.packed.shape[1] * stored.matrix.block for stored in rewritten.stored.values())
    return Served(
        library,
        rewritten,
        sum(tiles_nbytes(library, stored) for stored in rewritten.sources().values()),
        mapped,
        _scratch_nbytes(entry, rows=rows, widest=widest, threads=threads),
    )


def _scratch_nbytes(entry: ModelEntry, *, rows: int, widest: int, threads: int) -> int:
    """Bound the operators' own memory: rounded rows (operators.cpp), queries, and scores of 16 queries a thread."""
    rounded = rows * widest * 9 // 4  # up to two bytes a value, and eight for each 32
    queries = rows * max(entry.hidden_size, entry.kv_heads * entry.head_size) * 4 * 2
    scores = threads * 16 * 4 * (2 * (entry.context + 32) + entry.head_size)
    return rounded + queries + scores
