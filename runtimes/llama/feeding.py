"""How the engine takes rows that it is given in place of ids: asked of it, since that differs by architecture.

Gemma multiplies its embedding by the root of its width: llama.cpp does so with given rows too for gemma and gemma2, and
not for gemma3; Granite's factor it applies always. Another version may do otherwise, and nothing would say so: the
draft would only be worse. So one row is given both ways.
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

__all__ = ["find_scale"]

SAMPLE = 16
"""So many rows are looked at for one that is not empty."""
TOLERANCE = 1e-3
"""Of the logits' deviation. The same rows give the same bits; another factor differs by far more."""


def find_scale(
    weights: Weights,
    table: EmbeddingTable,
    *,
    vocabulary: TrimmedVocabulary,
    plan: StatePlan,
    name: str,
    budget: Budget,
) -> None:
    """Set what the whole table's rows are multiplied with before `weights`, trimmed to the vocabulary, gets them.

    Raises CapabilityError where none of the known factors gives the logits that the id gives.
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
        f"llama.cpp computes other logits from a row of the model {name} than from its id: its trimmed draft cannot be "
        f"used here, use --runtime onnx"
    )


def _logits(context: Context, tokens: Sequence[int], *, rows: int, table: EmbeddingTable | None = None) -> FloatArray:
    """Read tokens from an empty memory, by ids or by rows of the table, and return the last one's logits."""
    context.clear()
    context.feed(table, rows=len(tokens))
    context.batch.chain(tokens, position=0)
    context.batch.ask([len(tokens) - 1])
    context.decode()
    logits: FloatArray = context.logits(1, rows=rows)[0].copy()
    return logits


def _strongest(table: EmbeddingTable, vocabulary: TrimmedVocabulary) -> int:
    """Return the kept row, of some, whose embedding is largest: one of zeros would tell nothing."""
    rows = np.unique(np.linspace(0, len(vocabulary) - 1, SAMPLE).astype(np.int64))
    values = np.empty((len(rows), table.width), np.float32)
    RowReader(table, values).read(vocabulary.ids[rows].tolist())
    return int(rows[np.abs(values).sum(axis=1).argmax()])
