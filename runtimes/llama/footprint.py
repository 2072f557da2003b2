"""How much memory a GGUF model and its states take, planned before anything is loaded or made.

Knows arithmetic only. Plans are upper bounds; afterwards the leases are set to what the engine reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.gguf.header import Header
from edgedecode.manifest import ModelEntry
from edgedecode.types import ModelCard

from .engine import EXACT, ContextPlan

__all__ = ["ENGINE_NBYTES", "StatePlan", "plan_snapshots", "plan_state", "row_nbytes", "weights_nbytes"]

MIB = 2**20
FLOAT_NBYTES = 4
ENGINE_NBYTES = 14 * MIB
"""The bindings' Python modules, the library's pages and the first pass of a process (measured: 9.2 MiB)."""
CELL_GRID = 256
"""The engine rounds its cells up to this."""
ROWS_PER_PASS = 128
LEAST_ROWS_PER_PASS = 16
SCORES_NBYTES = 16 * MIB
"""Limit of one layer's attention scores, which exact attention keeps for every head, row and cell."""
LEAST_OUTPUTS = 8
"""Output rows every context has, and so branches: the engine keeps an output row for every sequence."""
MOST_OUTPUTS = 128
VOCABULARY_NBYTES = 400
"""A token's text and its places in the engine's own tables; the engine wants them though we never ask it for text."""
MOST_SNAPSHOTS = LEAST_OUTPUTS - 1
"""Together with the live sequence so many as every context has rows for. A draft of so many tokens, each of which is a
pass, is dropped again without reading anything twice."""
SNAPSHOTS_SHARE = 1 / 8
"""Of the weights' bytes: a state is copied once a round, weights are read once a pass."""
KV_VALUE_NBYTES = {"float32": 4.0, "float16": 2.0, "int8": 34 / 32}
CELL_NBYTES = 48
"""What a sequence's index of its cells takes for each."""
TILE_NBYTES = 512 * 1024
"""Each thread's tiles of the attention."""


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state: what its context is made with, and its bytes by use."""

    context: ContextPlan
    kv_nbytes: int
    output_nbytes: int
    compute_nbytes: int
    work_nbytes: int
    """What the engine allocates while it runs and does not report: kernels' buffers, indexes of cells."""

    @property
    def nbytes(self) -> int:
        return self.kv_nbytes + self.output_nbytes + self.compute_nbytes + self.work_nbytes


def plan_state(
    entry: ModelEntry, header: Header, *, card: ModelCard, capacity: int, rows: int, snapshots: int = 0
) -> StatePlan:
    """Plan a state of `capacity` rows of which one pass is asked for `rows` logits rows.

    snapshots: how many earlier memories of recurrent layers it keeps beside the live one.
    """
    kv_type, threads = card.kv_types[0], card.threads or 1
    cells = capacity + -capacity % CELL_GRID
    outputs = max(LEAST_OUTPUTS, min(rows, MOST_OUTPUTS))
    scores = FLOAT_NBYTES * cells * header.heads if kv_type == EXACT else 0
    sequences = outputs if card.tree else 1 + snapshots
    # The engine reserves a row for every sequence, so fewer rows than those would save nothing.
    width = max(
        LEAST_ROWS_PER_PASS, sequences, min(ROWS_PER_PASS, SCORES_NBYTES // scores if scores else ROWS_PER_PASS)
    )
    mlp = header.mlp_size or 4 * header.hidden_size
    attention = header.heads * header.head_size
    row = FLOAT_NBYTES * (8 * header.hidden_size + 3 * mlp + 4 * attention)
    masks = 2 if header.window else 1
    mask = masks * cells * width * (FLOAT_NBYTES if kv_type == EXACT else 2)
    values = 2 * entry.layers * entry.kv_heads * entry.head_size
    index = CELL_NBYTES * cells * sequences
    return StatePlan(
        context=ContextPlan(
            cells=cells,
            rows_per_pass=width,
            sequences=sequences,
            outputs=outputs,
            kv_type=kv_type,
            threads=threads,
        ),
        kv_nbytes=int(cells * values * KV_VALUE_NBYTES[kv_type]) + sequences * header.recurrent_nbytes,
        output_nbytes=outputs * row_nbytes(entry),
        compute_nbytes=width * (row + scores * 5 // 4) + outputs * row_nbytes(entry) + mask + MIB,
        work_nbytes=width * FLOAT_NBYTES * max(mlp, attention, header.hidden_size) + threads * TILE_NBYTES + index,
    )


def plan_snapshots(header: Header, *, file_nbytes: int) -> int:
    """Return how many snapshots of a recurrent memory a state may keep: few bytes beside the weights, or none."""
    if not header.recurrent_nbytes:
        return 0  # of an unknown size
    return min(MOST_SNAPSHOTS, int(file_nbytes * SNAPSHOTS_SHARE) // header.recurrent_nbytes)


def row_nbytes(entry: ModelEntry) -> int:
    """Return what one row of logits takes."""
    return FLOAT_NBYTES * entry.rows


def weights_nbytes(entry: ModelEntry, header: Header, *, file_nbytes: int) -> int:
    """Bound the weights: the mapped file, a copy repacked for the processor's kernels, the engine's vocabulary."""
    return file_nbytes + header.quantized_nbytes + VOCABULARY_NBYTES * entry.rows
