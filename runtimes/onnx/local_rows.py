"""What a local head computes with: the whole head's rows of some ids, as floats, read when the ids are chosen.

Chosen once and used by every pass that follows, which is why the graph does not look them up itself.
"""

from __future__ import annotations

import numpy as np

from edgedecode.errors import InputError
from edgedecode.head_table import ROWS_AT_ONCE, HeadTable
from edgedecode.memory import Budget, Lease
from edgedecode.types import FloatArray, IntArray

from .footprint import FLOAT_NBYTES
from .graph import LOCAL_LOGITS, Untyped
from .heads import LOCAL, Outlet

__all__ = ["LocalRows"]

MOST_IDS = 4096
"""More of them cost a small model as much as its whole head, which is quantized."""
INDEX_NBYTES = 8


class LocalRows:
    """Rows of a head under a lease that is taken before they are allocated, all that may be chosen at once."""

    def __init__(self, engine: Untyped, table: HeadTable, *, name: str, vocabulary_size: int, budget: Budget) -> None:
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._table: HeadTable | None = table
        self._size = vocabulary_size
        self.most = min(MOST_IDS, vocabulary_size)
        columns = table.layout.columns
        on_the_way = 2 * ROWS_AT_ONCE * columns * FLOAT_NBYTES
        self._lease: Lease = budget.reserve(
            f"local:{name}", self.most * (columns * FLOAT_NBYTES + INDEX_NBYTES) + on_the_way
        )
        self._rows: FloatArray = np.empty((self.most, columns), np.float32)
        self._ids: IntArray = np.empty(self.most, np.int64)
        self.chosen: IntArray = self._ids[:0]
        """The ids chosen last, as they were given."""
        self.outlet: Outlet | None = None
        """The head with these; None while there are none."""

    @property
    def closed(self) -> bool:
        return self._table is None

    def choose(self, ids: IntArray) -> None:
        """Read the rows of these ids. Raises InputError unless they ascend, 1 to `most` of them, all known."""
        assert self._table is not None
        count = len(ids)
        if not 1 <= count <= self.most:
            raise InputError(f"a local head takes 1 to {self.most} ids, not {count}")
        if ids[0] < 0 or ids[-1] >= self._size or (ids[1:] <= ids[:-1]).any():
            raise InputError(f"a local head's ids must ascend, from 0 to below {self._size}")
        self.outlet = None  # an interrupt in the middle leaves no half-read rows behind
        rows, kept = self._rows[:count], self._ids[:count]
        self._table.read(ids, rows)
        kept[:] = ids
        self.chosen = ids
        self.outlet = Outlet(LOCAL, LOCAL_LOGITS, count, (self._value(rows), self._value(kept)))

    def close(self) -> None:
        """Give everything back."""
        self._table = self.outlet = None
        self._rows, self._ids = np.empty((0, 0), np.float32), np.empty(0, np.int64)
        self.chosen = self._ids
        self._lease.release()
