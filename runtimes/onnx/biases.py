"""What a pass adds to attention scores: nothing for a chain, blocked rows for a tree, and what lies beyond a window.

A window is written here, by position: the engine's own counts slots, which a tree's rows do not fill in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray, IntArray

from .ancestors import BLOCKED
from .buffers import Buffers
from .graph_session import FULL_BIAS, WINDOW_BIAS, Untyped
from .kernels.rewriting import PARENTS
from .onnx_state import OnnxState

__all__ = ["Biases", "TreePaths", "block_far"]


class Biases:
    """The bias inputs of one graph: `inputs` names those it has, `window` is the positions a window layer sees."""

    def __init__(self, buffers: Buffers, *, inputs: Sequence[str], window: int) -> None:
        self._buffers = buffers
        self._full = FULL_BIAS in inputs
        self._window = window if WINDOW_BIAS in inputs else 0

    def plan(self, capacity: int, *, tree: bool) -> None:
        """Take the memory that a state of `capacity` rows needs beside the zeros. Raises BudgetExceeded."""
        if 0 < self._window < capacity:
            self._buffers.plan_window()
        if tree:
            self._buffers.plan_tree()

    def bind(self, binding: Untyped, state: OnnxState, *, start: int, width: int) -> None:
        """Bind the biases of the pending rows from `start`, whose positions stand in the buffers already."""
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
                pointer = self._beyond_window(state, tree, width=width, total=total)
            binding.bind_input(WINDOW_BIAS, "cpu", 0, np.float32, shape, pointer)

    def _beyond_window(self, state: OnnxState, tree: FloatArray | None, *, width: int, total: int) -> int:
        """Fill the window's bias and return where it lies."""
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
    """Binds the parents of a state's pending rows; the stand-in for `Biases` of a graph with our attention."""

    def __init__(self, engine: Untyped) -> None:
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._chain = self._value(np.empty(0, np.int32))

    def plan(self, capacity: int, *, tree: bool) -> None:
        """Take nothing: a tree's parents are counted with its rows."""

    def bind(self, binding: Untyped, state: OnnxState, *, start: int, width: int) -> None:
        """Bind the parents of pending rows 0 to start + width - 1, or none for a chain."""
        if state.tree is None:
            if not state.bound_chain:
                binding.bind_ortvalue_input(PARENTS, self._chain)
                state.bound_chain = True
            return
        state.bound_chain = False
        parents = np.array(state.tree.parents(start + width), np.int32)
        state.bound_parents = self._value(parents)  # kept: not every version of the engine's binding does
        binding.bind_ortvalue_input(PARENTS, state.bound_parents)


def block_far(bias: FloatArray, *, rows: IntArray, slots: IntArray, window: int) -> None:
    """Block in `bias`, [rows, slots], each slot whose position is `window` or more behind its row's."""
    np.copyto(bias, np.float32(BLOCKED), where=slots <= (rows - window)[:, None])
