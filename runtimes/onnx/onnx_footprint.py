"""How much memory a model takes, planned from its manifest entry and file sizes before anything is loaded.

Knows arithmetic only. Upper bounds: the figures beside the constants were measured with onnxruntime 1.31 on x86-64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt

from edgedecode.pack.manifest import ModelEntry

__all__ = ["ENGINE_NBYTES", "Footprint", "plan_footprint", "plan_own_footprint", "rows_per_pass", "widen_footprint"]

MIB = 2**20
FLOAT_NBYTES = 4
SESSION_NBYTES = 3 * MIB
"""A session without weights: nodes, allocators, rotary tables."""
ENGINE_NBYTES = 9 * MIB
"""Pages of the engine's library that the first session and pass of a process touch (measured: 8.9 MiB)."""
ROWS_PER_PASS = 256
"""A toy of the bundled target's shape reads a prompt at 0.93 to 0.99 of the speed of 512 rows (one busy machine)."""
BIAS_NBYTES = 2 * MIB
"""Limit of one pass's attention bias. The engine's score buffers are as large, once for every query head."""
ACTIVATION_NBYTES = 24 * MIB
"""Limit of one pass's other intermediate values; with wide MLPs it shortens the pass."""
LOGITS_NBYTES = 16 * 2**20
"""Limit of one pass's logits where the graph computes every row's."""
SCORE_COPIES = 3
"""Scores, masked scores and their softmax, beside the mask that the base plan counts once for every head."""
SPREAD_COPIES = 4
"""Keys and values repeated for every query head, each in two layouts."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The plan for one model: bytes by use, and how many rows a pass may have."""

    weights_nbytes: int
    bias_nbytes: int
    """Size of one bias buffer; there is one of zeros for chains and, once a tree is used, one for trees. 0: our
    attention, which takes none."""
    workspace_nbytes: int
    rows_per_pass: int

    def rows_after(self, total: int) -> int:
        """Return how many rows a pass may append when `total` rows are there: rows × (total + rows) fits the bias."""
        if not self.bias_nbytes:
            return self.rows_per_pass
        floats = self.bias_nbytes // FLOAT_NBYTES
        return max(1, min(self.rows_per_pass, (isqrt(total * total + 4 * floats) - total) // 2))


def rows_per_pass(entry: ModelEntry, *, adapters: bool) -> int:
    """Return the most rows of a pass, so that its intermediate values stay below their limit."""
    return max(2, min(ROWS_PER_PASS, ACTIVATION_NBYTES // _row_nbytes(entry, adapters=adapters)))


def plan_own_footprint(
    entry: ModelEntry,
    *,
    weights_nbytes: int,
    graph_nbytes: int,
    tiles_nbytes: int,
    scratch_nbytes: int,
    adapters: bool,
    all_ours: bool,
) -> Footprint:
    """Plan a model on our kernels: weights as tiles, used in place, and the embedding's rows from the weights file.

    all_ours: else the engine has products of its own, and packs their weights: all of them is an upper bound.
    """
    row, rows = _row_nbytes(entry, adapters=adapters), rows_per_pass(entry, adapters=adapters)
    read = int(entry.rows * entry.hidden_size * _weight_nbytes(entry.head_bits, entry.block_size))
    held = min(weights_nbytes, read) if all_ours else _weights_nbytes(entry, weights_nbytes)
    return Footprint(
        weights_nbytes=tiles_nbytes + held + 2 * graph_nbytes + SESSION_NBYTES,
        bias_nbytes=0,
        workspace_nbytes=rows * row * 5 // 4 + scratch_nbytes,
        rows_per_pass=rows,
    )


def plan_footprint(entry: ModelEntry, *, weights_nbytes: int, graph_nbytes: int, adapters: bool = False) -> Footprint:
    """Plan a model whose files have these sizes; `adapters`: its graph adds deltas to projections.

    Weights measured against the plan (MiB, the whole embedding read): bundled target at 8 bits 18.4 of 19.1, at 4 bits
    14.6 of 15.4, in float 48.6 of 49.6. A 0.5B Qwen2 at 4 bits, part of the embedding read: 560 of 638, about 620 at
    the peak of loading; a trimmed head of 32,768 rows in its graph's file adds 24 of 36 at 4 bits, 38 of 64 at 8.
    16-bit weights are an assumption, not measured.
    """
    row, rows = _row_nbytes(entry, adapters=adapters), rows_per_pass(entry, adapters=adapters)
    bias = max(min(BIAS_NBYTES, rows * entry.context * FLOAT_NBYTES), entry.context * FLOAT_NBYTES)
    query_heads = -(-entry.hidden_size // entry.head_size)
    return Footprint(
        weights_nbytes=_weights_nbytes(entry, weights_nbytes) + 2 * graph_nbytes + SESSION_NBYTES,
        bias_nbytes=bias,
        workspace_nbytes=rows * row * 5 // 4 + query_heads * bias,  # a quarter: the arena rounds up
        rows_per_pass=rows,
    )


def _weights_nbytes(entry: ModelEntry, file_nbytes: int) -> int:
    """Bound the prepacked copy that is made of every matrix, and the embedding's file pages beside it.

    A quantized block of b bytes and a float32 scale is packed as b bytes, a scale and a sum, and the file's scales are
    kept: (b + 12) / (b + 4) of the file. The embedding may share its table with the head: read from the file by rows,
    packed for the head.
    """
    head = entry.rows * entry.hidden_size * _weight_nbytes(entry.head_bits, entry.block_size)
    head_nbytes = min(file_nbytes, int(head))
    body = (file_nbytes - head_nbytes) * _packed_factor(entry.bits, entry.block_size)
    return int(body + head_nbytes * _packed_factor(entry.head_bits, entry.block_size)) + head_nbytes


def _weight_nbytes(bits: int, block: int) -> float:
    return bits / 8 + (FLOAT_NBYTES / block if bits <= 8 and block else 0)


def _packed_factor(bits: int, block: int) -> float:
    if bits == 32:
        return 1.0
    if bits == 16 or not block:
        return 3.0  # kept as read and as float32
    return (block * bits / 8 + 12) / (block * bits / 8 + 4)


def _row_nbytes(entry: ModelEntry, *, adapters: bool) -> int:
    """Bound one row's live intermediate values: five of the MLP's width (with deltas six), eight of the hidden size."""
    body = max(0, entry.parameters - entry.rows * entry.hidden_size)
    mlp = body // (3 * entry.hidden_size * entry.layers)
    return FLOAT_NBYTES * ((6 if adapters else 5) * mlp + 8 * entry.hidden_size)


def widen_footprint(base: Footprint, entry: ModelEntry) -> Footprint:
    """Return the plan of a graph that joins past and present itself, from that of a base graph: its attention is made
    of plain nodes, whose intermediate values all exist."""
    rows = base.rows_per_pass
    if "rows" not in entry.graphs["base"].capabilities:
        rows = max(2, min(rows, LOGITS_NBYTES // (FLOAT_NBYTES * entry.rows)))
    heads = -(-entry.hidden_size // entry.head_size)
    spread = SPREAD_COPIES * heads * entry.head_size * entry.context * FLOAT_NBYTES
    workspace = base.workspace_nbytes + SCORE_COPIES * heads * base.bias_nbytes + spread
    return replace(base, workspace_nbytes=workspace, rows_per_pass=rows)
