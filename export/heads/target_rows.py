"""Reads what a head shares with its target from the target's file: its embedding, and the matrix of its logits."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError, ManifestError
from edgedecode.gguf.contents import read_contents
from edgedecode.gguf.header import EMBEDDING, OUTPUT
from edgedecode.pack.manifest import ModelEntry

from ..gguf.plan import GgufPlan
from ..gguf.row_source import BlockRows
from .gguf_head import gguf_tensor
from .head import Head, HeadTensor


def target_tensor(target: ModelEntry, root: Path, *names: str) -> HeadTensor | None:
    """Return the first of the target's matrices with these names; None: the pack does not say where they are."""
    with suppress(OSError, ManifestError):
        if target.gguf:
            contents = read_contents(root / target.gguf)
            found = next((contents.tensors[name] for name in names if name in contents.tensors), None)
            return None if found is None else gguf_tensor(root / target.gguf, contents, found)
        if target.gguf_plan:
            planned = {
                each.name: each for each in GgufPlan.load(root / target.gguf_plan).located(root / target.weights)
            }
            rows = next((planned[name].rows for name in names if name in planned), None)
            return _blocks(rows) if isinstance(rows, BlockRows) else None
    return None


def _blocks(rows: BlockRows) -> HeadTensor:
    count = sum(piece.rows for piece in rows.pieces)

    def first(most: int = count) -> FloatArray:
        return rows.floats(0, min(most, count))

    return HeadTensor((count, rows.columns), first, read_first=first)


def with_output(head: Head, target: ModelEntry, root: Path) -> Head:
    """Return the head with its target's rows of logits if it has none of its own. Raises ExportError without them."""
    if not head.shape.tied:
        return head
    found = target_tensor(target, root, OUTPUT, EMBEDDING)
    ids, least = head.ids, 0 if head.ids is None else int(head.ids.max()) + 1
    if found is None or found.shape[1] != head.shape.hidden or found.shape[0] < least:
        raise ExportError("the head uses its target's output, and the pack does not say where that is")
    if head.shape.rank and ids is None and found.shape[0] != head.shape.vocabulary:  # the chain's rows are as many
        head = head.of_ids(np.arange(min(found.shape[0], head.shape.vocabulary)))
        ids = head.ids
    matrix = found
    rows = matrix.shape[0] if ids is None else len(ids)
    output = replace(matrix, shape=(rows, matrix.shape[1]), read_first=None)
    if ids is not None:
        output = replace(output, read=lambda: matrix.read()[ids])
    return Head(replace(head.shape, rows=rows, tied=False), {**head.tensors, OUTPUT: output}, ids)
