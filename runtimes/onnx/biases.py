"""The attention bias of a pass: zeros for a chain, blocked rows for a tree, and blocked positions beyond a window.

Windows are applied here, by position, since the engine's own windows count slots, which trees do not fill in order.
"""

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray, IntArray

from .ancestors import BLOCKED
from .buffers import Buffers
from .graph_session import FULL_BIAS, WINDOW_BIAS
from .onnx_engine import Untyped
from .onnx_state import OnnxState


class Biases:
    """The bias inputs of one graph. inputs: the graph's inputs. window: positions visible to a sliding-window layer."""

    def __init__(self, buffers: Buffers, *, inputs: Sequence[str], window: int) -> None:
        self._buffers = buffers
        self._full = FULL_BIAS in inputs
        self._window = window if WINDOW_BIAS in inputs else 0

    def plan(self, capacity: int, *, tree: bool) -> None:
        """Allocate the buffers that a state of `capacity` rows needs besides the zeros. Raises BudgetExceeded."""
        if 0 < self._window < capacity:
            self._buffers.plan_window()
        if tree:
            self._buffers.plan_tree()

    def bind(self, binding: Untyped, state: OnnxState, *, start: int, width: int) -> None:
        """Bind the biases of the pending rows from `start`, whose positions are in the buffers already."""
        total = state.length + start + width
        tree: FloatArray | None = None
        if state.tree is not None:
            tree = self._buffers.tree_bias(width, total)
            state.tree.fill_bias(tree, settled=state.length, start=start)
        pointer = self._buffers.zeros_pointer if tree is None else tree.ctypes.data
        shape = (1, 1, width, total)
        if self._full:
            binding.bind_input(FULL_BIAS, "cpu", 0, np.float32, shape, pointer)
        if self._window:
            if total > self._window:
                pointer = self._fill_window(state, tree, width=width, total=total)
            binding.bind_input(WINDOW_BIAS, "cpu", 0, np.float32, shape, pointer)

    def _fill_window(self, state: OnnxState, tree: FloatArray | None, *, width: int, total: int) -> int:
        """Fill the window's bias and return its address."""
        buffers = self._buffers
        bias = buffers.window_bias(width, total)
        slots = buffers.counter[:total]
        if tree is None or state.tree is None:
            bias[:] = 0.0
        else:
            bias[:] = tree
            slots = slots.copy()
            slots[state.length :] = np.add(state.tree.depths(0, total - state.length), state.length)
        block_far(bias, rows=buffers.positions[:width], slots=slots, window=self._window)
        return int(bias.ctypes.data)


def block_far(bias: FloatArray, *, rows: IntArray, slots: IntArray, window: int) -> None:
    """Block in `bias`, [rows, slots], each slot whose position is `window` or more before its row's."""
    np.copyto(bias, np.float32(BLOCKED), where=slots <= (rows - window)[:, None])
