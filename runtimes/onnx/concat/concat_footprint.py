"""What a graph that joins past and present itself takes beyond the plan of a base graph."""

from __future__ import annotations

from dataclasses import replace

from edgedecode.pack.manifest import ModelEntry

from ..onnx_footprint import FLOAT_NBYTES, Footprint

__all__ = ["widen_footprint"]

LOGITS_NBYTES = 16 * 2**20
"""Limit of one pass's logits where the graph computes every row's."""
SCORE_COPIES = 3
"""Scores, masked scores and their softmax, beside the mask that the base plan counts once for every head."""
SPREAD_COPIES = 4
"""Keys and values repeated for every query head, each in two layouts."""


def widen_footprint(base: Footprint, entry: ModelEntry) -> Footprint:
    """Plan attention made of plain nodes, whose intermediate values all exist: an upper bound."""
    rows = base.rows_per_pass
    if "rows" not in entry.graphs["base"].capabilities:
        rows = max(2, min(rows, LOGITS_NBYTES // (FLOAT_NBYTES * entry.rows)))
    heads = -(-entry.hidden_size // entry.head_size)
    spread = SPREAD_COPIES * heads * entry.head_size * entry.context * FLOAT_NBYTES
    workspace = base.workspace_nbytes + SCORE_COPIES * heads * base.bias_nbytes + spread
    return replace(base, workspace_nbytes=workspace, rows_per_pass=rows)
