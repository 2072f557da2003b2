"""Plan a model's memory from its manifest entry and graph before anything is loaded.

Plans are upper bounds. Figures next to constants were measured with onnxruntime 1.31 on x86-64.
"""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.errors import ManifestError
from edgedecode.memory.budget import Holder
from edgedecode.pack.entries import GGUF
from edgedecode.pack.manifest import Graph, ModelEntry

from .graph_needs import GraphSizes, measured_sizes
from .providers.kv_cache import CacheShape
from .recurrence import RecurrentShape

if TYPE_CHECKING:
    from .kernels.serving import Served
    from .providers.provider import Provider

MIB = 2**20
FLOAT_NBYTES = 4
SESSION_NBYTES = MIB // 8
LAYER_NBYTES = 96 * 1024
"""A session without weights: its allocators, and the nodes of each layer (measured: 84 KiB)."""
ENGINE_NBYTES = 10 * MIB
"""Pages of the engine's library that the first session and pass of a process touch (measured: 8.2 MiB with our kernels,
9.3 with the engine's), and memory that the first session leaves in the heap (1.5)."""
GGUF_NBYTES = 3 * 2**19
"""Half of what is kept of a GGUF file's header, as a graph counts twice. Making the graph leaves an eighth of it in the
heap (measured: up to 1.5 and 4 MB)."""
UNPACKED_COPIES = 2
"""The heap may keep a freed copy that the next pass cannot reuse, depending on its addresses."""
ARENA_SHARE = 9 / 8
ARENA_NBYTES = 3 * MIB // 2
"""Gaps between a pass's values in the region of the engine's allocator."""
HEAD_ARENA_NBYTES = MIB
"""The same of a drafting head, of whose one layer few values exist at once (measured: 0.8 MiB)."""
ARENA_MARGIN_NBYTES = 8 * MIB
THREADS_NBYTES = MIB
"""Per-thread buffers of the engine's quantized products, outside the allocator."""
ROWS_PER_PASS = 256
"""A toy of the bundled target's shape prefills at 0.93 to 0.99 of the speed of 512 rows (one busy machine)."""
HEAD_ROWS = 32
"""A drafting head reads few rows at a time, and many only after a prompt: 256 take 4% longer than in passes of 64."""
BIAS_NBYTES = 2 * MIB
"""Limit of one pass's attention bias."""
ACTIVATION_NBYTES = 24 * MIB
"""Limit of one pass's other intermediate values. Wide MLPs therefore get fewer rows per pass."""
SQUARE_NBYTES = 4 + 8
"""A column's sum of squares, of a pass and of all passes."""
SCORE_COPIES = 2
"""Scores and their softmax, for every head; the mask is counted among a row's values."""
SPREAD_COPIES = 4
"""Keys and values repeated for every query head, each in two layouts."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The plan for one model: bytes by use, and rows per pass."""

    weights_nbytes: int
    bias_nbytes: int
    """Size of one bias buffer: there is one of zeros for chains and, once a tree is used, one for trees. 0 with our
    attention, which needs no bias."""
    workspace_nbytes: int
    rows_per_pass: int
    logits_copies: int = 0
    """Intermediate copies of each row of logits in the graph."""
    packed_nbytes: int = 0
    """The part of the weights that the engine packs, with its session."""
    unpacked_nbytes: int = 0
    """Heap of the matrices that the engine dequantizes in a pass, outside its allocator's region."""
    caches: tuple[CacheShape, ...] = ()
    """A state's keys and values."""
    recurrent: tuple[RecurrentShape, ...] = ()
    """The memories of its recurrent operators."""

    def arena_nbytes(self, *, logits_row_nbytes: int) -> int:
        """Return the limit for the engine's allocator: packed weights, twice the workspace, logits and 8 MiB.

        The allocator reserves regions of doubling size, of which the unused rest is never touched.
        """
        logits = self.logits_copies * self.rows_per_pass * logits_row_nbytes
        return self.packed_nbytes + 2 * self.workspace_nbytes + logits + ARENA_MARGIN_NBYTES

    def loaded(self, name: str) -> tuple[Holder, ...]:
        """Return the memory of the open model `name`, besides the engine's code."""
        return (
            Holder(f"weights:{name}", self.weights_nbytes),
            Holder(f"workspace:{name}", self.workspace_nbytes + self.unpacked_nbytes),
        )

    def rows_after(self, total: int) -> int:
        """Return how many rows a pass may append to `total` rows, so that rows × (total + rows) fits the bias."""
        if not self.bias_nbytes:
            return self.rows_per_pass
        floats = self.bias_nbytes // FLOAT_NBYTES
        return max(1, min(self.rows_per_pass, (isqrt(total * total + 4 * floats) - total) // 2))


def code_holders(provider: "Provider") -> tuple[Holder, ...]:
    """Return the pages of the engine, and of a provider's library and driver."""
    driver = provider.driver_nbytes()
    return Holder("engine code", ENGINE_NBYTES), *([Holder(f"driver:{provider.name}", driver)] if driver else [])


def rows_per_pass(entry: ModelEntry, *, adapters: bool) -> int:
    """Return the rows per pass that keep its intermediate values below their limit; few for a drafting head."""
    most = HEAD_ROWS if entry.taps else ROWS_PER_PASS
    return max(2, min(most, ACTIVATION_NBYTES // _row_nbytes(entry, adapters=adapters)))


def plan_own_footprint(
    entry: ModelEntry, sizes: GraphSizes, *, graph_nbytes: int, tiles_nbytes: int, scratch_nbytes: int, adapters: bool
) -> Footprint:
    """Plan a model on our kernels: weights are tiles used in place; the engine packs those of its own products.

    sizes, graph_nbytes: of the rewritten graph.
    """
    rows = rows_per_pass(entry, adapters=adapters)
    threads = _threads_nbytes(entry) if sizes.products_nbytes else 0
    arena = _arena_nbytes(sizes, rows, gaps=HEAD_ARENA_NBYTES if entry.taps else ARENA_NBYTES)
    return Footprint(
        weights_nbytes=tiles_nbytes + _held_nbytes(entry, sizes, graph_nbytes),
        bias_nbytes=0,
        workspace_nbytes=arena + scratch_nbytes + threads + SQUARE_NBYTES * sizes.squares,
        rows_per_pass=rows,
        logits_copies=sizes.logits,
        packed_nbytes=sizes.products_nbytes + 2 * graph_nbytes + SESSION_NBYTES + LAYER_NBYTES * entry.layers,
        unpacked_nbytes=UNPACKED_COPIES * sizes.unpacked_nbytes,
        caches=sizes.caches,
        recurrent=sizes.recurrent,
    )


def plan_footprint(entry: ModelEntry, sizes: GraphSizes, *, graph_nbytes: int, adapters: bool = False) -> Footprint:
    """Plan a model on the engine's kernels. adapters: whether its graph adds deltas to projections.

    The engine's attention works on blocks of positions, also with a bias, so a pass's full scores never exist.
    """
    rows = rows_per_pass(entry, adapters=adapters)
    bias = max(min(BIAS_NBYTES, rows * entry.context * FLOAT_NBYTES), entry.context * FLOAT_NBYTES)
    return Footprint(
        weights_nbytes=_held_nbytes(entry, sizes, graph_nbytes),
        bias_nbytes=bias,
        workspace_nbytes=_arena_nbytes(sizes, rows) + _threads_nbytes(entry),
        rows_per_pass=rows,
        logits_copies=sizes.logits,
        packed_nbytes=sizes.products_nbytes + 2 * graph_nbytes + SESSION_NBYTES + LAYER_NBYTES * entry.layers,
        unpacked_nbytes=UNPACKED_COPIES * sizes.unpacked_nbytes,
        caches=sizes.caches,
        recurrent=sizes.recurrent,
    )


def plan_static_footprint(
    entry: ModelEntry, sizes: GraphSizes, *, graph_nbytes: int, width: int, slots: int
) -> Footprint:
    """Plan one graph of fixed width. Its attention consists of basic operators, whose intermediate values all exist."""
    columns, heads = slots + width, -(-entry.hidden_size // entry.head_size)
    scores = SCORE_COPIES * heads * width * columns
    keys = 2 * SPREAD_COPIES * entry.kv_heads * entry.head_size * columns
    attention = FLOAT_NBYTES * (scores + keys)
    return Footprint(
        weights_nbytes=_held_nbytes(entry, sizes, graph_nbytes),
        bias_nbytes=0,
        workspace_nbytes=_arena_nbytes(sizes, width) + attention + _threads_nbytes(entry),
        rows_per_pass=width,
        logits_copies=sizes.logits,
        packed_nbytes=sizes.products_nbytes + 2 * graph_nbytes + SESSION_NBYTES + LAYER_NBYTES * entry.layers,
        unpacked_nbytes=UNPACKED_COPIES * sizes.unpacked_nbytes,
        caches=sizes.caches,
        recurrent=sizes.recurrent,
    )


def _held_nbytes(entry: ModelEntry, sizes: GraphSizes, graph_nbytes: int) -> int:
    """Return the memory of an open session: tables used in place, packed weights, the graph as read and optimized."""
    session = SESSION_NBYTES + LAYER_NBYTES * entry.layers
    return sizes.tables_nbytes + sizes.products_nbytes + 2 * graph_nbytes + session


def _threads_nbytes(entry: ModelEntry) -> int:
    return THREADS_NBYTES if entry.bits < 16 else 0


def _arena_nbytes(sizes: GraphSizes, rows: int, *, gaps: int = ARENA_NBYTES) -> int:
    return int(rows * FLOAT_NBYTES * sizes.values * ARENA_SHARE) + gaps


def _row_nbytes(entry: ModelEntry, *, adapters: bool) -> int:
    """Return an upper bound of a row's live values: five of the MLP's width (six with deltas), eight hidden sizes."""
    body = max(0, entry.parameters - entry.rows * entry.hidden_size)
    mlp = body // (3 * entry.hidden_size * entry.layers)
    return FLOAT_NBYTES * ((6 if adapters else 5) * mlp + 8 * entry.hidden_size)


def planned(entry: ModelEntry, graph: Graph, path: Path, served: "Served | None") -> Footprint:
    """Return the model's memory plan, with our kernels or the engine's."""
    adapters = "lora" in graph.capabilities
    data = _graph_bytes(path) if served is None else served.rewritten.data
    try:
        sizes = measured_sizes(data, hidden=entry.hidden_size)
    except (ValueError, IndexError) as error:
        raise ManifestError(f"{path} cannot be read ({error}): export or import the pack again") from None
    if served is None:
        return plan_footprint(entry, sizes, graph_nbytes=len(data), adapters=adapters)
    return plan_own_footprint(
        entry,
        sizes,
        graph_nbytes=len(data)
        + (GGUF_NBYTES + len(data) // 16 if GGUF in graph.capabilities and not entry.taps else 0),
        tiles_nbytes=served.nbytes,
        scratch_nbytes=served.scratch_nbytes,
        adapters=adapters,
    )


def _graph_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}): export or import the pack again") from None
