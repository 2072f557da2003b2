"""Find out whether the engine scales embedding rows that it gets instead of ids, which differs by architecture.

Gemma multiplies its embedding by the square root of its width. llama.cpp also does so with given rows for gemma and
gemma2, but not for gemma3; it always applies Granite's factor. Another version may differ, and the only symptom would
be worse drafts. So the logits of one row are compared with those of its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import sqrt

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget

from .embeddings import EmbeddingTable, RowReader
from .llama_context import Context
from .llama_engine import Weights
from .llama_footprint import StatePlan

SAMPLE = 16
"""Number of rows searched for one that is not zero."""
TOLERANCE = 1e-3
"""As a share of the logits' standard deviation. The same rows give the same bits; a wrong factor differs far more."""


def find_scale(
    weights: Weights,
    table: EmbeddingTable,
    *,
    vocabulary: TrimmedVocabulary,
    plan: StatePlan,
    name: str,
    budget: Budget,
) -> None:
    """Set the factor for the full table's rows before they are passed to `weights`, which has the trimmed vocabulary.

    Raises CapabilityError if no known factor gives the same logits as the id.
    """
    row = _strongest(table, vocabulary)
    with ExitStack() as undo:
        lease = undo.enter_context(budget.reserve(f"kv:{name}", plan.nbytes))
        work = undo.enter_context(budget.reserve(f"work:{name}", plan.work_nbytes + table.row_nbytes))
        native = weights.engine.context(weights, plan.context)
        context = Context(weights, native, plan=plan.context, lease=lease, work=work)
        undo.callback(context.close)
        wanted = _logits(context, [row], rows=weights.rows)
        for scale in (1.0, sqrt(table.width)):
            table.scale = scale
            found = _logits(context, [int(vocabulary.ids[row])], rows=weights.rows, table=table)
            if np.abs(found - wanted).max() <= TOLERANCE * wanted.std():
                return
    raise CapabilityError(
        f"llama.cpp computes different logits from an embedding row of the model {name} than from its id: its trimmed "
        f"draft cannot be used on this engine, use --runtime onnx"
    )


def _logits(context: Context, tokens: Sequence[int], *, rows: int, table: EmbeddingTable | None = None) -> FloatArray:
    """Prefill an empty context with tokens, by ids or by rows of the table, and return the last one's logits."""
    context.clear()
    context.feed(table, rows=len(tokens))
    context.batch.chain(tokens, position=0)
    context.batch.ask([len(tokens) - 1])
    context.decode()
    logits: FloatArray = context.logits(1, rows=rows)[0].copy()
    return logits


def _strongest(table: EmbeddingTable, vocabulary: TrimmedVocabulary) -> int:
    """Return the kept row with the largest embedding in a sample, as a row of zeros would be unaffected by scaling."""
    rows = np.unique(np.linspace(0, len(vocabulary) - 1, SAMPLE).astype(np.int64))
    values = np.empty((len(rows), table.width), np.float32)
    RowReader(table, values).read(vocabulary.ids[rows].tolist())
    return int(rows[np.abs(values).sum(axis=1).argmax()])
