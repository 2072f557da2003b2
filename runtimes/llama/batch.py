"""The arrays of one pass as the engine reads them, made once and written in place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .embeddings import EmbeddingTable, RowReader
from .llama_log import Untyped

__all__ = ["Batch"]


class Batch:
    """A `llama_batch` of at most `rows` rows and `sequences` ids each, over numpy arrays it keeps alive.

    table: gives the engine rows of it in place of ids.
    """

    def __init__(self, api: Untyped, *, rows: int, sequences: int, table: EmbeddingTable | None = None) -> None:
        self._tokens = np.zeros(rows, np.int32)
        embeddings = np.zeros((rows, 0 if table is None else table.width), np.float32)
        self._reader = None if table is None else RowReader(table, embeddings)  # which keeps them alive
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._ids = np.zeros((rows, sequences), np.int32)
        self._outputs = np.zeros(rows, np.int8)
        self._steps = np.arange(rows, dtype=np.int32)
        self.count = 0
        self.outputs = 0
        """How many rows the batch holds, and how many of them are outputs."""
        self._branched = 0
        """How many rows hold something else than the one id 0."""
        starts = [_pointer(row, ctypes.c_int32) for row in self._ids]
        self._starts = (ctypes.POINTER(ctypes.c_int32) * rows)(*starts)
        self.value = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32) if table is None else None,
            embd=None if table is None else _pointer(embeddings, ctypes.c_float),
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=ctypes.cast(self._starts, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def chain(self, tokens: Sequence[int], *, position: int) -> None:
        """Write rows that continue sequence 0 from `position`."""
        count = len(tokens)
        self._begin(tokens)
        if count == 1:
            self._positions[0] = position
        else:
            np.add(self._steps[:count], position, out=self._positions[:count])
        if self._branched:
            self._counts[: self._branched] = 1
            self._ids[: self._branched, 0] = 0
            self._branched = 0

    def tree(self, tokens: Sequence[int], *, positions: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """Write rows at these positions with these ids."""
        count = len(tokens)
        self._begin(tokens)
        self._positions[:count] = positions
        self._branched = max(self._branched, count)
        for row, own in enumerate(ids):
            self._counts[row] = len(own)
            self._ids[row, : len(own)] = own

    def ask(self, outputs: Sequence[int]) -> None:
        """Mark these rows, and no others, as outputs."""
        self._outputs[: self.count] = 0
        for row in outputs:
            self._outputs[row] = 1
        self.outputs = len(outputs)

    def _begin(self, tokens: Sequence[int]) -> None:
        self.count = self.value.n_tokens = len(tokens)
        if self._reader is None:
            self._tokens[: self.count] = tokens
        else:
            self._reader.read(tokens)


def _pointer(array: npt.NDArray[np.generic], kind: Untyped) -> Untyped:
    return array.ctypes.data_as(ctypes.POINTER(kind))
