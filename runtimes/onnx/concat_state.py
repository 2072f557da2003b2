"""One sequence's keys and values for graphs that return past and new rows joined. Knows rows; runs nothing itself.

Such a graph cannot write into its past, so there are two buffers that take turns: one is read, the other is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedecode.errors import CapabilityError, InputError
from edgedecode.manifest import ModelEntry
from edgedecode.memory import Lease
from edgedecode.types import FloatArray

from .footprint import FLOAT_NBYTES

__all__ = ["ConcatState", "concat_state_nbytes"]


def concat_state_nbytes(entry: ModelEntry, capacity: int) -> int:
    """Return what a state of `capacity` rows takes: its past and its present."""
    return 2 * capacity * 2 * entry.layers * entry.kv_heads * entry.head_size * FLOAT_NBYTES


class ConcatState:
    """Implements `State` for chains. A buffer holds, for each layer's keys and values, [kv heads, rows, head size].

    `stored` rows lie in the buffer that is read. Rows that were cropped or not kept stay there until the next pass,
    which first copies what is left, because rows are inside a head and not behind all heads.
    """

    def __init__(self, entry: ModelEntry, *, capacity: int, lease: Lease, owner: object, binding: object) -> None:
        self.owner = owner
        self._lease = lease
        self._capacity = capacity
        self._length = 0
        self._pending = 0
        self._stored = 0
        self._heads, self._size = entry.kv_heads, entry.head_size
        values = 2 * entry.layers
        self._buffers: FloatArray = np.zeros((2, values, entry.kv_heads * capacity * entry.head_size), np.float32)
        self._reading = 0
        self.binding: Any = binding

    @property
    def length(self) -> int:
        return self._length

    @property
    def pending(self) -> int:
        return self._pending

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    @property
    def oldest_crop(self) -> int:
        return 0

    @property
    def closed(self) -> bool:
        return self.binding is None

    def keep(self, path: Sequence[int]) -> None:
        if len(path) > self._pending:
            raise InputError(f"{len(path)} pending rows cannot be kept: there are {self._pending}")
        for index, node in enumerate(path):
            if node != index:
                raise InputError(f"pending row {node} is not row {index} of the chain: keep its first rows")
        self._length, self._pending = self._length + len(path), 0

    def crop(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise CapabilityError(f"cannot go back to length {length}: {self._length} positions are settled")
        self._length, self._pending = length, 0

    def check(self, count: int, *, parents: Sequence[int] | None, name: str) -> None:
        """Raise unless `count` rows fit and continue the chain."""
        used = self._length + self._pending
        if used + count > self._capacity:
            raise CapabilityError(
                f"{count} more rows do not fit the state: {used} of {self._capacity} are used (shorten the prompt, "
                f"or raise --ctx-size)"
            )
        if parents is None:
            return
        if len(parents) != count:
            raise InputError(f"{len(parents)} parents for {count} tokens")
        for index, parent in enumerate(parents, self._pending):
            if not -1 <= parent < index:
                raise InputError(f"row {index} has parent {parent}: parents come before their children, -1 is the root")
            if parent != index - 1:
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

    def commit(self, count: int) -> None:
        """Count the rows of a finished forward as pending."""
        self._pending += count

    def close(self) -> None:
        self.binding = None
        self._buffers = np.zeros((2, 1, 0), np.float32)
        self._length = self._pending = self._stored = 0
        self._lease.release()

    def _view(self, buffer: int, rows: int) -> FloatArray:
        """Return [values, kv heads, rows, head size] over a buffer."""
        used = self._buffers[buffer][:, : self._heads * rows * self._size]
        view: FloatArray = used.reshape(-1, self._heads, rows, self._size)
        return view
