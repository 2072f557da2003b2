"""One sequence's keys and values for graphs of fixed shapes."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.memory.budget import Lease
from edgedecode.pack.manifest import ModelEntry
from edgedecode.pack.static_graphs import HIDDEN_SCORE

from ..biases import block_far
from ..onnx_adapters import Form
from ..onnx_engine import Untyped
from ..onnx_footprint import FLOAT_NBYTES
from ..onnx_state import TreeState


def static_state_nbytes(entry: ModelEntry, slots: int) -> int:
    """Return the bytes of a state: all of its slots, whatever its capacity, since the graph reads all of them."""
    return slots * 2 * entry.layers * entry.kv_heads * entry.head_size * FLOAT_NBYTES


class Bound:
    """A binding, and the adapter's matrices that are bound in it; None: none yet."""

    __slots__ = ("adapter", "binding")

    def __init__(self, binding: Untyped) -> None:
        self.binding = binding
        self.adapter: Form | None = None


class StaticState(TreeState):
    """Implements `State`. Keys and values of all layers, [2 · layers, 1, KV heads, slots, head size]."""

    def __init__(
        self,
        entry: ModelEntry,
        *,
        slots: int,
        capacity: int,
        lease: Lease,
        owner: object,
        busy: AbstractContextManager[object],
    ) -> None:
        super().__init__(capacity=capacity, owner=owner, lease=lease, busy=busy)
        self.cache: FloatArray = np.zeros((2 * entry.layers, 1, entry.kv_heads, slots, entry.head_size), np.float32)
        self.binding: dict[int, Bound] | None = {}
        """The engine's binding of each width that was used."""
        self.adapter: Form | None = None
        """The matrices of the latest pass."""

    def store(self, present: FloatArray, *, start: int, count: int) -> None:
        """Copy a pass's first `count` keys and values, [2 · layers, 1, heads, width, size], to pending row `start`."""
        first = self._length + start
        self.cache[:, :, :, first : first + count] = present[:, :, :, :count]

    def fill_mask(self, mask: FloatArray, *, start: int, count: int) -> None:
        """Write the mask of a pass over pending rows `start` to start + count, [width, slots + width].

        Rows that fill the width see only themselves, so that their softmax is defined.
        """
        length, slots = self._length, mask.shape[1] - mask.shape[0]
        mask[:] = HIDDEN_SCORE
        mask[:count, :length] = 0
        if self.tree is None:
            mask[:count, length : length + start] = 0
            own = np.tri(count, dtype=np.bool_)
        else:
            bias = np.empty((count, length + start + count), np.float32)
            self.tree.fill_bias(bias, settled=length, start=start)
            visible = bias[:, length:] == 0
            mask[:count, length : length + start][visible[:, :start]] = 0
            own = visible[:, start:]
        mask[:count, slots : slots + count][own] = 0
        for row in range(count, mask.shape[0]):
            mask[row, slots + row] = 0

    def block_window(self, mask: FloatArray, *, start: int, count: int, window: int) -> None:
        """Hide the positions outside a sliding window in a mask filled by `fill_mask`."""
        slots = mask.shape[1] - mask.shape[0]
        positions = np.array([*range(self._length), *self.positions(0, start + count)], np.int64)
        past, own = positions[: self._length + start], positions[self._length + start :]
        block_far(mask[:count, : len(past)], rows=own, slots=past, window=window)
        block_far(mask[:count, slots : slots + count], rows=own, slots=own, window=window)

    def _drop(self) -> None:
        super()._drop()
        self.adapter = None
        self.cache = np.zeros((0, 1, 1, 0, 1), np.float32)

    def _gather(self, path: Sequence[int]) -> None:
        start, sources = self._length, np.asarray(path, np.int64) + self._length
        self.cache[:, :, :, start : start + len(path)] = self.cache[:, :, :, sources]
