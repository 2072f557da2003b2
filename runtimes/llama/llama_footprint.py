"""Plan the memory of a GGUF model and its states before anything is loaded.

Plans are upper bounds; the leases are later set to the sizes that the engine reports.
"""

from dataclasses import dataclass
from typing import NamedTuple

from edgedecode.decoding.model import ModelCard
from edgedecode.gguf.header import Header
from edgedecode.memory.budget import Holder
from edgedecode.pack.manifest import ModelEntry

from .llama_engine import EXACT, ContextPlan, Loading
from .llama_log import ROUNDING_NBYTES

MIB = 2**20
FLOAT_NBYTES = 4
FLOAT_BITS = 16
"""From this many bits per weight on, products do not quantize the activations."""
ENGINE_NBYTES = 10 * MIB
"""The bindings' Python modules, the library's pages and the first model of a process (measured: 8 to 9 MiB, counting
shared pages in full)."""
CELL_GRID = 256
"""The engine rounds its cells up to a multiple of this."""
ROWS_PER_PASS = 128
LEAST_ROWS_PER_PASS = 16
SCORES_NBYTES = 16 * MIB
"""Limit of one layer's attention scores, which exact attention stores for every head, row and cell."""
ACTIVATIONS_NBYTES = 32 * MIB
"""Limit of a pass's activations in an MLP. Very wide MLPs get narrower passes, which cost nothing (an MLP of 61,824,
128 tokens in passes of 16, 40, 88, 128 rows: 1.57, 1.62, 1.60, 1.62 s of one core)."""
ROW_VALUES = 40
"""A row's token, position and output index, and padding for alignment (fitted: 20 to 26)."""
COMPUTE_SLACK_NBYTES = 32 * 1024
OUTPUT_INDEX_NBYTES = 16
LEAST_OUTPUTS = 8
"""Least output rows of a context, and so least branches: the engine keeps an output row per sequence."""
MOST_OUTPUTS = 128
VOCABULARY_NBYTES = 330
"""A token's text and its entries in the engine's tables, which the engine builds although we do not use them (measured:
320 for 151,936 tokens with merges)."""
USUAL_CELLS = 4096
"""Assumed context of a session before it is opened."""
DRAWING_NBYTES = 64
"""Per token of the vocabulary: memory for sampling in a session, besides its state."""
MOST_SNAPSHOTS = LEAST_OUTPUTS - 1
"""Together with the live sequence, as many as every context has outputs for. A draft of up to this many one-token
passes is rolled back without evaluating any token twice."""
SNAPSHOTS_SHARE = 1 / 8
"""Limit of the snapshots, as a share of the weights' bytes: a state is copied once per round, weights are read once per
pass."""
KV_VALUE_NBYTES = {"float32": 4.0, "float16": 2.0, "int8": 34 / 32}
CELL_NBYTES = 48
"""A cell's entry in a sequence's index."""
TILE_NBYTES = 512 * 1024
"""Attention tiles, per thread."""
GRAPH_NBYTES = 220 * 1024
"""The engine's graph of a pass, per layer (measured for a second state: 0.2 MiB)."""
ROUNDED_NBYTES = 1.25
"""An activation that is quantized to 8 bits for a product with quantized weights, with its share of scales and sums."""


ADAPTER_COPIES = 3
"""Intermediate arrays of a product's size for an adapter's delta."""
ADAPTER_GRAPH_NBYTES = 6 * 512
"""Graph nodes of one product's delta: six of 512 bytes."""
PLANNED_RANK = 64
"""Rank of the adapters that a state is planned for; a larger one takes more memory when it is used."""


class StateExtras(NamedTuple):
    """What every state of a model reserves besides its sequence."""

    snapshots: int = 0
    """Snapshots of recurrent layers, besides the live memory."""
    adapted: int = 0
    """Products that an adapter may change; 0: a state grows when an adapter is used."""


NO_EXTRAS = StateExtras()


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state: the parameters of its context, and its bytes by use."""

    context: ContextPlan
    kv_nbytes: int
    output_nbytes: int
    compute_nbytes: int
    work_nbytes: int
    """Memory that the engine allocates but does not report, leased separately: kernel buffers, cell indexes, graphs."""
    adapter_nbytes: int = 0
    """What the compute buffer grows by when an adapter is used; 0 for a model that was opened without adapters."""

    @property
    def nbytes(self) -> int:
        """Upper bound of the memory that the engine will report."""
        return self.kv_nbytes + self.output_nbytes + self.compute_nbytes + self.adapter_nbytes


def plan_state(
    entry: ModelEntry, header: Header, *, card: ModelCard, capacity: int, rows: int, extras: StateExtras = NO_EXTRAS
) -> StatePlan:
    """Plan a state of `capacity` rows whose passes return up to `rows` rows of logits."""
    kv_type, threads = card.kv_type, card.threads or 1
    cells = capacity + -capacity % CELL_GRID
    outputs = max(LEAST_OUTPUTS, min(rows, MOST_OUTPUTS))
    sequences = outputs if card.tree else 1 + extras.snapshots
    width = _width(header, cells=cells, sequences=sequences, kv_type=kv_type)
    mlp = header.mlp_size or 4 * header.hidden_size
    widest = max(mlp, header.heads * header.head_size, header.hidden_size)
    rounded = int(width * widest * (FLOAT_NBYTES if entry.bits >= FLOAT_BITS else ROUNDED_NBYTES))
    recurrent = sequences * header.recurrent_nbytes + ROUNDING_NBYTES if header.recurrent_nbytes else 0
    index = CELL_NBYTES * cells * sequences
    return StatePlan(
        context=ContextPlan(
            cells=cells, rows_per_pass=width, sequences=sequences, outputs=outputs, kv_type=kv_type, threads=threads
        ),
        kv_nbytes=cells * position_nbytes(entry, header, kv_type=kv_type) + ROUNDING_NBYTES + recurrent,
        output_nbytes=outputs * row_nbytes(entry) + outputs * OUTPUT_INDEX_NBYTES + ROUNDING_NBYTES,
        compute_nbytes=_compute_nbytes(entry, header, width=width, outputs=outputs, cells=cells, kv_type=kv_type),
        work_nbytes=rounded + threads * TILE_NBYTES + index + entry.layers * GRAPH_NBYTES,
        adapter_nbytes=adapter_work_nbytes(width, widest=widest, rank=PLANNED_RANK, products=extras.adapted)
        if extras.adapted
        else 0,
    )


def adapter_work_nbytes(rows: int, *, widest: int, rank: int, products: int) -> int:
    """Return the most that the compute buffer grows by for an adapter, in passes of at most `rows` rows.

    widest: the longest side of the products that it changes.
    """
    return FLOAT_NBYTES * rows * (ADAPTER_COPIES * widest + rank) + ADAPTER_GRAPH_NBYTES * products


def position_nbytes(entry: ModelEntry, header: Header, *, kv_type: str) -> int:
    """Return the bytes of one position's keys and values."""
    return int(2 * header.kv_layers * entry.kv_heads * entry.head_size * KV_VALUE_NBYTES[kv_type])


def state_holders(
    entry: ModelEntry,
    header: Header,
    card: ModelCard,
    capacity: int,
    *,
    extras: StateExtras,
    rows: int = 1,
    tree: bool = False,
) -> tuple[Holder, ...]:
    """Return a state's memory under the names of its leases; trees need no more than chains."""
    plan = plan_state(entry, header, card=card, capacity=capacity, rows=rows, extras=extras)
    gathered = rows if rows > min(plan.context.rows_per_pass, plan.context.outputs) else 0  # of several passes
    return (
        Holder(f"kv:{card.name}", plan.nbytes),
        Holder(f"work:{card.name}", plan.work_nbytes),
        Holder(f"logits:{card.name}", gathered * FLOAT_NBYTES * card.rows),
    )


def plan_snapshots(header: Header, *, file_nbytes: int) -> int:
    """Return how many snapshots of a recurrent memory a state may keep: they must be small relative to the weights."""
    if not header.recurrent_nbytes:
        return 0  # unknown size
    return min(MOST_SNAPSHOTS, int(file_nbytes * SNAPSHOTS_SHARE) // header.recurrent_nbytes)


def _width(header: Header, *, cells: int, sequences: int, kv_type: str) -> int:
    """Return the rows per pass: a multiple of the sequences, since the engine reserves memory for such a pass."""
    scores = FLOAT_NBYTES * cells * header.heads if kv_type == EXACT else 0
    most = min(ROWS_PER_PASS, ACTIVATIONS_NBYTES // (FLOAT_NBYTES * _mlp_values(header)))
    if scores:
        most = min(most, SCORES_NBYTES // scores)
    most = max(most, LEAST_ROWS_PER_PASS, sequences)
    return most - most % sequences


def _compute_nbytes(entry: ModelEntry, header: Header, *, width: int, outputs: int, cells: int, kv_type: str) -> int:
    """Return an upper bound of the compute buffer, which the widest stage determines: attention, MLP or logits."""
    hidden, attention = header.hidden_size, header.heads * header.head_size
    scores = cells * header.heads if kv_type == EXACT else 0
    attending = scores + 2 * hidden + 4 * attention
    layer = width * FLOAT_NBYTES * (max(attending, _mlp_values(header)) + ROW_VALUES)
    logits = outputs * (row_nbytes(entry) + FLOAT_NBYTES * hidden) + width * FLOAT_NBYTES * hidden
    masks = (2 if header.window else 1) * cells * width * (FLOAT_NBYTES if kv_type == EXACT else 2)
    return max(layer, logits) + masks + COMPUTE_SLACK_NBYTES


def _mlp_values(header: Header) -> int:
    """Return the activations of a row during its MLP: gate, up and their product, and the residuals."""
    if header.mlp_size:
        return 3 * header.mlp_size + 4 * header.hidden_size
    return 20 * header.hidden_size  # recurrent blocks, whose sizes are not in the header


def row_nbytes(entry: ModelEntry) -> int:
    """Return the bytes of one row of logits."""
    return FLOAT_NBYTES * entry.rows


def weights_nbytes(
    entry: ModelEntry, header: Header, *, file_nbytes: int, loading: Loading, copied_nbytes: int | None = None
) -> int:
    """Return an upper bound of the weights: the mapped file, a copy repacked for the kernels, the engine's vocabulary.

    copied_nbytes: bytes outside the mapped file that the engine reported when it loaded this file before; None:
    everything that can be repacked counts.
    """
    if copied_nbytes is not None:
        return loaded_nbytes(entry, file_nbytes=file_nbytes, loading=loading, copied_nbytes=copied_nbytes)
    return file_nbytes + (header.quantized_nbytes if loading.twice else 0) + VOCABULARY_NBYTES * entry.rows


def read_buffer_nbytes(header: Header, loading: Loading) -> int:
    """Return an upper bound of the buffer that weights are read through while they load: a matrix; mapped ones: 0."""
    return 0 if loading.mmap else max((tensor.nbytes for tensor in header.tensors.values()), default=0)


def loaded_nbytes(entry: ModelEntry, *, file_nbytes: int, loading: Loading, copied_nbytes: int) -> int:
    """Return the bytes of loaded weights. copied_nbytes: reported by the engine outside the mapped file."""
    return (file_nbytes if loading.mmap else 0) + copied_nbytes + VOCABULARY_NBYTES * entry.rows


def session_nbytes(entry: ModelEntry, header: Header, *, card: ModelCard) -> int:
    """Return an upper bound of a typical session's memory besides the weights."""
    plan = plan_state(entry, header, card=card, capacity=min(card.context, USUAL_CELLS), rows=1)
    return plan.nbytes + plan.work_nbytes + DRAWING_NBYTES * entry.rows
