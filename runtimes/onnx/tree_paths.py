"""What our attention is told of a tree: each pending row's parent. A chain needs nothing."""

from __future__ import annotations

import numpy as np

from .graph_session import Untyped
from .kernels.rewriting import PARENTS
from .onnx_state import OnnxState

__all__ = ["TreePaths"]


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
