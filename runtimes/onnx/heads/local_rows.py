"""What a local head computes with: the whole head's rows of some ids, as floats, read when the ids are chosen.

They serve every pass that follows, and of the next choice only the ids that are new are read: choices change little
from round to round.
"""

from __future__ import annotations

import numpy as np

from edgedecode.decoding.arrays import FloatArray, IntArray
from edgedecode.errors import InputError
from edgedecode.head_table import HeadTable
from edgedecode.memory import Budget, Lease

from ..graph_session import LOCAL_LOGITS, Untyped
from ..onnx_footprint import FLOAT_NBYTES
from .logits_outputs import LOCAL, Outlet

__all__ = ["LocalRows"]

MOST_IDS = 4096
"""More of them cost a small model as much as its whole head, which is quantized."""
ROWS_AT_ONCE = 256
"""Rows that are read together: what is made on the way stays this small."""
VALUES_KEPT = 64
INDEX_NBYTES = 8


class LocalRows:
    """Rows of a head under a lease that is taken before they are allocated, all that may be chosen at once.

    The rows of n chosen ids lie in the first n slots, in any order; `Outlet.order` says which slot is whose.
    """

    def __init__(self, engine: Untyped, table: HeadTable, *, name: str, vocabulary_size: int, budget: Budget) -> None:
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._table: HeadTable | None = table
        self.most = min(MOST_IDS, vocabulary_size)
        columns = table.layout.columns
        rows = self.most + 3 * ROWS_AT_ONCE
        indices = 5 * self.most + vocabulary_size
        self._lease: Lease = budget.reserve(f"local:{name}", rows * columns * FLOAT_NBYTES + indices * INDEX_NBYTES)
        try:
            self._rows: FloatArray = np.empty((self.most, columns), np.float32)
            self._read: FloatArray = np.empty((ROWS_AT_ONCE, columns), np.float32)
            self._ids: IntArray = np.zeros(self.most, np.int64)
            """Whose row is in each slot."""
            self._slots: IntArray = np.full(vocabulary_size, self.most, np.int64)
            """The slot of each id; one that does not exist for ids whose row is not here."""
        except BaseException:
            self._lease.release()
            raise
        self._values: dict[int, tuple[Untyped, Untyped]] = {}
        """The engine's values over the first slots and their ids, by how many."""
        self.chosen: IntArray = self._ids[:0]
        """The ids chosen last, as they were given."""
        self.outlet: Outlet | None = None
        """The head with these; None while there are none."""

    @property
    def closed(self) -> bool:
        return self._table is None

    def choose(self, ids: IntArray) -> None:
        """Hold the rows of these ids. Raises InputError unless they ascend, 1 to `most` of them, all known."""
        count = len(ids)
        if not 1 <= count <= self.most:
            raise InputError(f"a local head takes 1 to {self.most} ids, not {count}")
        if ids[0] < 0 or ids[-1] >= len(self._slots) or (ids[1:] <= ids[:-1]).any():
            raise InputError(f"a local head's ids must ascend, from 0 to below {len(self._slots)}")
        self.outlet = None  # an interrupt in the middle leaves no half-read rows behind
        slots = self._slots.take(ids)
        missing = slots >= count
        if missing.any():
            free = np.ones(count, np.bool_)
            free[slots[~missing]] = False
            slots[missing] = np.flatnonzero(free)
            self._fill(slots[missing], ids[missing])
        self.chosen = ids
        self.outlet = Outlet(LOCAL, LOCAL_LOGITS, count, self._values_of(count), slots)

    def close(self) -> None:
        """Give everything back."""
        self._table = self.outlet = None
        self._values.clear()
        self._rows = self._read = np.empty((0, 0), np.float32)
        self._ids = self._slots = self.chosen = np.empty(0, np.int64)
        self._lease.release()

    def _values_of(self, count: int) -> tuple[Untyped, Untyped]:
        values = self._values.get(count)
        if values is None:
            if len(self._values) >= VALUES_KEPT:
                self._values.clear()
            values = self._values[count] = self._value(self._rows[:count]), self._value(self._ids[:count])
        return values

    def _fill(self, slots: IntArray, ids: IntArray) -> None:
        """Read rows into slots that nothing needs."""
        assert self._table is not None
        for start in range(0, len(ids), ROWS_AT_ONCE):
            part, places = ids[start : start + ROWS_AT_ONCE], slots[start : start + ROWS_AT_ONCE]
            read = self._read[: len(part)]
            self._table.read(part, read)
            held = self._ids[places]
            self._slots[held[self._slots[held] == places]] = self.most
            self._rows[places] = read
            self._ids[places] = part
            self._slots[part] = places
