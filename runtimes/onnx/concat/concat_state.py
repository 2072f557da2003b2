"""One sequence's keys and values for graphs that return past and new rows joined.

Such a graph cannot write into its past, so there are two buffers that take turns: one is read, the other is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from edgedecode.decoding.arrays import FloatArray
from edgedecode.errors import CapabilityError
from edgedecode.memory import Lease
from edgedecode.pack.manifest import ModelEntry

from ...row_checks import check_chain, check_crop, check_kept, check_room, continues
from ..onnx_footprint import FLOAT_NBYTES
from ..session_model import SessionState

__all__ = ["ConcatState", "concat_state_nbytes"]


def concat_state_nbytes(entry: ModelEntry, capacity: int) -> int:
    """Return what a state of `capacity` rows takes: its past and its present."""
    return 2 * capacity * 2 * entry.layers * entry.kv_heads * entry.head_size * FLOAT_NBYTES


class ConcatState(SessionState):
    """Implements `State` for chains. A buffer holds, for each layer's keys and values, [kv heads, rows, head size].

    `stored` rows lie in the buffer that is read. Rows that were cropped or not kept stay there until the next pass,
    which first copies what is left, because rows are inside a head and not behind all heads.
    """

    def __init__(
        self,
        entry: ModelEntry,
        *,
        capacity: int,
        lease: Lease,
        owner: object,
        binding: object,
        busy: AbstractContextManager[object],
    ) -> None:
        super().__init__(capacity=capacity, owner=owner, lease=lease, busy=busy)
        self.binding = binding
        self._stored = 0
        self._heads, self._size = entry.kv_heads, entry.head_size
        values = 2 * entry.layers
        self._buffers: FloatArray = np.zeros((2, values, entry.kv_heads * capacity * entry.head_size), np.float32)
        self._reading = 0

    def keep(self, path: Sequence[int]) -> None:
        check_kept(path, pending=self._pending)
        check_chain(path)
        self._length, self._pending = self._length + len(path), 0

    def crop(self, length: int) -> None:
        check_crop(length, settled=self._length)
        self._length, self._pending = length, 0

    def check(self, count: int, *, parents: Sequence[int] | None, name: str) -> None:
        """Raise unless `count` rows fit and continue the chain."""
        check_room(count, used=self._length + self._pending, capacity=self._capacity)
        if parents is not None and not continues(parents, count=count, after=self._pending):
            raise CapabilityError(f"{name} has no tree attention: its graph reads chains only")

    def trim(self, rows: int) -> None:
        """Leave the first `rows` stored rows, side by side."""
        if rows == self._stored:
            return
        if rows > 0:
            self._view(1 - self._reading, rows)[:] = self._view(self._reading, self._stored)[:, :, :rows]
        self._reading, self._stored = 1 - self._reading, rows

    def pointers(self, *, written: bool) -> list[int]:
        """Return where each value's past lies, or where its present goes."""
        buffer = self._buffers[1 - self._reading if written else self._reading]
        return [int(values.ctypes.data) for values in buffer]

    def turn(self, rows: int) -> None:
        """Take what a finished pass wrote, `rows` in all, for the past of the next."""
        self._reading, self._stored = 1 - self._reading, rows

    def _drop(self) -> None:
        self._buffers = np.zeros((2, 1, 0), np.float32)
        self._stored = 0

    def _view(self, buffer: int, rows: int) -> FloatArray:
        """Return [values, kv heads, rows, head size] over a buffer."""
        used = self._buffers[buffer][:, : self._heads * rows * self._size]
        view: FloatArray = used.reshape(-1, self._heads, rows, self._size)
        return view
