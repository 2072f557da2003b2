"""The attention bias of a pass: zeros for a chain, blocked rows for a tree, and blocked positions beyond a window.

Windows are applied here, by position, since the engine's own windows count slots, which trees do not fill in order.
"""

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray, IntArray

from ..ancestors import BLOCKED
from ..buffers import Buffers
from ..graph_session import FULL_BIAS, WINDOW_BIAS
from ..kernels.rewriting import PARENTS
from ..onnx_engine import Untyped
from ..onnx_state import OnnxState


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


class TreePaths:
    """Binds the parents of a state's pending rows; replaces `Biases` for a graph with our attention."""

    def __init__(self, engine: Untyped) -> None:
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._chain = self._value(np.empty(0, np.int32))

    def plan(self, capacity: int, *, tree: bool) -> None:
        """Allocate nothing: a tree's parents are planned with its rows."""

    def bind(self, binding: Untyped, state: OnnxState, *, start: int, width: int) -> None:
        """Bind the parents of pending rows 0 to start + width - 1, or none for a chain."""
        if state.tree is None:
            if not state.bound_chain:
                binding.bind_ortvalue_input(PARENTS, self._chain)
                state.bound_chain = True
            return
        state.bound_chain = False
        parents = np.array(state.tree.parents(start + width), np.int32)
        state.bound_parents = self._value(parents)  # not every version of the engine's binding keeps it alive
        binding.bind_ortvalue_input(PARENTS, state.bound_parents)


def block_far(bias: FloatArray, *, rows: IntArray, slots: IntArray, window: int) -> None:
    """Block in `bias`, [rows, slots], each slot whose position is `window` or more before its row's."""
    np.copyto(bias, np.float32(BLOCKED), where=slots <= (rows - window)[:, None])
