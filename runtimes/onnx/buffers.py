"""The arrays of a model's passes, allocated once: inputs, attention bias, logits.

The engine's values share these arrays' memory, so that writing into an array changes the input.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.memory.budget import Budget, Lease

from .onnx_engine import Untyped
from .onnx_footprint import FLOAT_NBYTES, Footprint

INDEX_NBYTES = 8


def buffers_nbytes(footprint: Footprint, context: int) -> int:
    """Return the bytes of a model's inputs and of the bias for chains."""
    return footprint.bias_nbytes + INDEX_NBYTES * (context + 4 * footprint.rows_per_pass)


def bias_copies(footprint: Footprint, *, tree: bool, window: bool) -> int:
    """Return the bytes that trees and window layers add to the buffers, with temporaries for filling a bias."""
    return (2 * footprint.bias_nbytes if tree else 0) + (3 * footprint.bias_nbytes // 2 if window else 0)


def logits_nbytes(count: int, *, rows: int, copies: int) -> int:
    """Return the bytes of `count` rows of logits, and of their `copies` inside the graph."""
    return count * (1 + copies) * rows * FLOAT_NBYTES


class Buffers:
    """Input, bias and logits arrays of one model. Each is leased before it is allocated."""

    def __init__(
        self, engine: Untyped, *, name: str, rows: int, context: int, footprint: Footprint, budget: Budget
    ) -> None:
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._rows = rows
        self._row_nbytes = logits_nbytes(1, rows=rows, copies=footprint.logits_copies)
        width = footprint.rows_per_pass
        self._bias_nbytes = footprint.bias_nbytes
        self._tree_nbytes = bias_copies(footprint, tree=True, window=False)
        self._window_nbytes = bias_copies(footprint, tree=False, window=True)
        with ExitStack() as undo:  # releases the leases if an array cannot be allocated
            self._lease = undo.enter_context(budget.reserve(f"buffers:{name}", buffers_nbytes(footprint, context)))
            self._logits_lease = undo.enter_context(budget.reserve(f"logits:{name}", 0))
            self.ids: IntArray = np.zeros(width, np.int64)
            self.positions: IntArray = np.zeros(width, np.int64)
            self.picked: IntArray = np.zeros(width, np.int64)
            self.last_slot = np.zeros(1, np.int32)
            self.total = np.zeros(1, np.int32)
            self.last_slot_value = self._value(self.last_slot)
            self.total_value = self._value(self.total)
            self.counter: IntArray = np.arange(context, dtype=np.int64)
            self._zeros: FloatArray = np.zeros(footprint.bias_nbytes // FLOAT_NBYTES, np.float32)
            self._tree_bias: FloatArray | None = None
            self._window_bias: FloatArray | None = None
            self.logits: FloatArray = np.empty((0, rows), np.float32)
            self.logits_pointer = 0
            self._widths: dict[int, tuple[Untyped, Untyped]] = {}
            self._picks: dict[int, Untyped] = {}
            self.zeros_pointer: int = self._zeros.ctypes.data
            undo.pop_all()

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases over these arrays."""
        return (self._lease, self._logits_lease)

    def width_values(self, width: int) -> tuple[Untyped, Untyped]:
        """Return the engine's values over the first `width` ids and positions."""
        values = self._widths.get(width)
        if values is None:
            values = (self._value(self.ids[None, :width]), self._value(self.positions[None, :width]))
            self._widths[width] = values
        return values

    def picked_value(self, count: int) -> Untyped:
        """Return the engine's value over the first `count` indices of rows to compute."""
        value = self._picks.get(count)
        if value is None:
            value = self._picks[count] = self._value(self.picked[:count])
        return value

    def plan_tree(self) -> FloatArray:
        """Allocate the bias for trees. Raises BudgetExceeded."""
        if self._tree_bias is None:
            self._lease.resize(self._lease.nbytes + self._tree_nbytes)
            self._tree_bias = np.empty(self._bias_nbytes // FLOAT_NBYTES, np.float32)
        return self._tree_bias

    def tree_bias(self, rows: int, total: int) -> FloatArray:
        """Return a bias to fill, [rows, total]. Raises as `plan_tree`, for a state created without trees."""
        return self.plan_tree()[: rows * total].reshape(rows, total)

    def plan_window(self) -> None:
        """Allocate the bias of window layers, which chains longer than the window need too. Raises BudgetExceeded."""
        if self._window_bias is None:
            self._lease.resize(self._lease.nbytes + self._window_nbytes)
            self._window_bias = np.empty(self._bias_nbytes // FLOAT_NBYTES, np.float32)

    def window_bias(self, rows: int, total: int) -> FloatArray:
        """Return a bias to fill, [rows, total]."""
        assert self._window_bias is not None, "planned with the state"
        return self._window_bias[: rows * total].reshape(rows, total)

    def hold_rows(self, count: int) -> None:
        """Grow the logits to at least `count` rows. Raises BudgetExceeded before allocating."""
        if len(self.logits) < count:
            self._logits_lease.resize(count * self._row_nbytes)
            self._drop_rows()  # frees the old rows first
            fresh: FloatArray = np.empty((count, self._rows), np.float32)
            self.logits_pointer = fresh.ctypes.data
            self.logits = fresh  # last: after an interrupt before this line, the next call allocates again

    def shrink(self, count: int, *, tree: bool) -> None:
        """Free the rows beyond `count`, and the bias for trees unless `tree`."""
        if len(self.logits) > count:
            self._drop_rows()
            self.hold_rows(count)
            self._logits_lease.resize(count * self._row_nbytes)
        if self._tree_bias is not None and not tree:
            self._tree_bias = None
            self._lease.resize(self._lease.nbytes - self._tree_nbytes)

    def pick(self, rows: Sequence[int]) -> None:
        """Request the logits of these rows in the next pass."""
        if len(rows) == 1:
            self.picked[0] = rows[0]
        else:
            self.picked[: len(rows)] = rows

    def close(self) -> None:
        """Free the arrays and release the leases."""
        self._widths.clear()
        self._picks.clear()
        self._tree_bias = self._window_bias = None
        self._drop_rows()
        self._zeros = np.empty(0, np.float32)
        for lease in self.leases:
            lease.release()

    def _drop_rows(self) -> None:
        self.logits = np.empty((0, self._rows), np.float32)
