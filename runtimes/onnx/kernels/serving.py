"""Prepares a graph for our kernels: rewrites it and provides its tiles, or reports why the engine runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedecode.engines.engine_factory import GraphKernels
from edgedecode.engines.interface import SQUARES
from edgedecode.errors import CapabilityError
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.entries import GGUF
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.text.printable import counted
from edgedecode.user_notices import notice

from .library import KernelLibrary
from .prepared import keep_findings, load_findings, made_in_memory, prepare_tiles, tiles_nbytes, weights_digest
from .products import FLOAT_ACTIVATIONS, NotServed, Stored, Weights, WeightsFile, tile_offsets
from .rewriting import GIVEN_TILES, GRAPH_TILES, Rewritten, rewrite
from .trial import kernels_line, load_kernels

PRODUCT = "MatMulNBits"
_RECURRENT_NBYTES = 512
"""Of a row, for 64 heads: two factors each. Places of earlier inputs take less."""


@dataclass(frozen=True, slots=True)
class GivenTable:
    """A model's embedding as another model reads it: its place among the tiles that the model holds."""

    stored: Stored
    tiles: npt.NDArray[np.uint8]


def given_table(beside: object) -> GivenTable | None:
    """Return the embedding of a drafting head's target; None: no target. Raises CapabilityError if it has no tiles."""
    if beside is None:
        return None
    table = getattr(beside, "table", None)
    if not isinstance(table, GivenTable):
        raise CapabilityError(
            "the drafting head reads its target's embedding, which our kernels do not run here: use --drafter suffix "
            "(`edgedecode devices -m PACK` says why)"
        )
    return table


@dataclass(frozen=True, slots=True)
class Served:
    """A graph that our kernels can run."""

    library: KernelLibrary
    rewritten: Rewritten
    nbytes: int
    """Size of the tiles."""
    weights: Weights
    digest: str
    """Digest of the weights file; empty: it is not part of a pack."""
    scratch_nbytes: int
    """Memory of our operators for all threads, in addition to the engine's."""
    features: tuple[str, ...] = ()
    """The outputs with what the layers asked for read."""

    def table(self, tiles: Mapping[str, npt.NDArray[np.uint8]]) -> GivenTable | None:
        """Return the embedding among these tiles; None: it is no matrix of ours."""
        for source, stored in self.rewritten.sources().items():
            places = tile_offsets(self.library, stored)
            for each in stored:
                if each.name == self.rewritten.table and source in tiles and each.given is None:
                    return GivenTable(replace(each, name="target", given=places[each.name]), tiles[source])
        return None

    def tiles(self) -> dict[str, npt.NDArray[np.uint8]]:
        """Map or build the tiles, by graph input. Their bytes must be leased first."""
        found = {}
        for source, stored in self.rewritten.sources().items():
            if source == GIVEN_TILES:
                continue
            if source == GRAPH_TILES:
                found[source] = made_in_memory(self.library, stored)
            else:
                found[source] = prepare_tiles(self.library, stored, digest=self.digest, release=self.weights.release)
        return found


def serve(
    entry: ModelEntry,
    graph: Graph,
    *,
    root: Path,
    threads: int,
    rows: int,
    taps: Sequence[int] = (),
    hidden: bool = False,
    beside: object = None,
) -> Served | None:
    """Rewrite a graph; None: the engine's kernels run it, by choice or because ours cannot.

    root: the pack's folder. rows: the most rows of a pass. hidden: an exported graph gives its hidden states too.
    taps, beside: see `ModelRequest`.
    Raises InputError for an invalid `EDGEDECODE_KERNELS`, CapabilityError for a GGUF file that our kernels cannot run.
    """
    library = load_kernels()
    if library is None:
        return None
    path, given = root / graph.file, given_table(beside)
    table = None if given is None else given.stored
    try:
        read = _rewritten(
            entry, graph, root=root, library=library, threads=threads, taps=taps, hidden=hidden, given=table
        )
    except NotServed as refusal:  # the engine opens it, or reports its error
        if GGUF in graph.capabilities:
            raise CapabilityError(f"{path.name}: {refusal}{_advice(graph)}") from None
        notice(f"{path} runs with the engine's kernels: {refusal}")
        return None
    rewritten = read.rewritten
    for reason, count in rewritten.unserved.items():
        notice(f"the engine's kernels run {counted(count, 'product')} of {path.parent.name}/{path.name}: {reason}")
    inner = (stored.matrix.packed.shape[1] * stored.matrix.block for stored in rewritten.stored.values())
    rank = max((graph.lora_rank for graph in entry.graphs.values()), default=0)
    narrow = 4 * rows * rank * rewritten.narrow_ranks
    return Served(
        library,
        rewritten,
        sum(tiles_nbytes(library, stored) for name, stored in rewritten.sources().items() if name != GIVEN_TILES),
        read.weights,
        read.digest,
        _scratch_nbytes(entry, read, rows=rows, widest=max(inner, default=0), threads=threads) + narrow,
        read.features,
    )


def _advice(graph: Graph) -> str:
    """Return what to do about a GGUF file with parts that our kernels lack."""
    if SQUARES in graph.capabilities:
        return ""
    if find_spec("llama_cpp") is None:
        return ": llama.cpp may run it (pip install 'edgedecode[llama]')"
    return ": use --runtime llama"


def explain(entry: ModelEntry, root: Path, *, name: str, graph: Graph) -> GraphKernels:
    """Report which kernels run a graph of the pack at `root` here, and which operators the engine runs, and why."""
    library = load_kernels()
    if library is None:
        return GraphKernels(name, "", kernels_line())
    try:
        read = _rewritten(entry, graph, root=root, library=library, threads=1)
    except NotServed as refusal:
        return GraphKernels(name, "", f"ONNX Runtime's own kernels: {refusal}")
    left, unserved = dict(read.rewritten.left), dict(read.rewritten.unserved)
    if others := left.pop(PRODUCT, 0) - sum(unserved.values()):
        unserved[FLOAT_ACTIVATIONS] = others
    left |= {f"{PRODUCT} ({reason})": count for reason, count in unserved.items()}
    return GraphKernels(
        name,
        library.instruction_set,
        matrices=len(read.rewritten.stored),
        left=left,
        row_invariant=read.rewritten.row_invariant,
    )


@dataclass(frozen=True, slots=True)
class _Read:
    rewritten: Rewritten
    weights: Weights
    digest: str
    heads: int
    """Most query heads of an attention node."""
    channels: int
    """Most values of a row of a recurrent operator's result; 0: there is none."""
    features: tuple[str, ...] = ()


def _rewritten(
    entry: ModelEntry,
    graph: Graph,
    *,
    root: Path,
    library: KernelLibrary,
    threads: int,
    taps: Sequence[int] = (),
    hidden: bool = False,
    given: Stored | None = None,
) -> _Read:
    """Return the graph with our operators and its weights. Raises NotServed."""
    digest = weights_digest(root, root / entry.weights)
    known = load_findings(digest)
    file, mapped = _opened(
        entry,
        graph,
        root=root,
        digest=digest,
        findings=known,
        given=given,
        every_row=any(tap <= entry.layers for tap in taps),
    )
    features: tuple[str, ...] = ()
    if taps:
        from ..features import add_features  # late: few targets have a drafting head

        features = add_features(file, taps, of=entry.layers)
    if hidden:
        from ..features import add_hidden

        if not add_hidden(file, entry.hidden_size):
            raise NotServed("it was not exported by edgedecode, and gives no hidden states")
    rewritten = rewrite(file, library, mapped, window=entry.window, threads=threads)
    mapped.release()
    if mapped.findings != known:
        keep_findings(digest, mapped.findings)
    heads, channels = (_most(file, name) for name in ("num_heads", "channels"))
    return _Read(rewritten, mapped, digest, heads, channels, features)


def _most(file: GraphFile, attribute: str) -> int:
    found = (node.attributes.get(attribute, 0) for node in file.nodes)
    return max((each for each in found if isinstance(each, int)), default=0)


def _opened(
    entry: ModelEntry,
    graph: Graph,
    *,
    root: Path,
    digest: str,
    findings: Mapping[str, int],
    given: Stored | None,
    every_row: bool,
) -> tuple[GraphFile, Weights]:
    path = root / graph.file
    if GGUF in graph.capabilities:
        from ..gguf.opening import gguf_graph

        return gguf_graph(entry, path, graph, digest=digest, findings=findings, given=given, every_row=every_row)
    try:
        return GraphFile.parse(path.read_bytes()), WeightsFile(root / entry.weights, findings=findings)
    except (OSError, ValueError) as error:
        raise NotServed(str(error)) from None


def _scratch_nbytes(entry: ModelEntry, read: _Read, *, rows: int, widest: int, threads: int) -> int:
    """Return a bound on our operators' memory (`Scratch`): rounded rows, queries; per thread scores, slots' owners.

    Of recurrent operators: a row's inputs, and for each of its heads or earlier inputs some bytes.
    """
    rounded = rows * widest * 19 // 8  # up to two bytes per value, and twelve per 32: a scale and two sums
    queries = rows * read.heads * entry.head_size * 4
    recurrent = rows * (4 * read.channels + _RECURRENT_NBYTES) if read.channels else 0
    return rounded + queries + threads * thread_nbytes(entry, rows) + recurrent


def thread_nbytes(entry: ModelEntry, rows: int) -> int:
    """Return a bound on the memory of our operators for each thread."""
    return 4 * (16 * (entry.context + 32 + 3 * entry.head_size + rows) + entry.context)
