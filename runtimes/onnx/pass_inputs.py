"""The inputs of a pass besides the engine's attention biases (`biases.py`): ids, positions, lengths, the rows that get
logits, the tree of our attention; and its outputs.

A provider that shares host memory reads the arrays in place, so they are bound once and again where a width changes.
Other engines' bindings copy an input to the device when it is bound, so it is bound in every pass.
"""

from collections.abc import Sequence

import numpy as np

from edgedecode.decoding.model import ModelCard

from .buffers import Buffers
from .kernels.rewriting import PARENTS
from .onnx_engine import Untyped
from .onnx_footprint import FLOAT_NBYTES
from .onnx_state import OnnxState

POSITIONS = "position_ids"
"""int64 [1, rows]: each row's position. [slots]: each used slot's position, for attention that rotates by slot."""


class Outputs:
    """Binds the outputs of one model's passes to its buffers."""

    def __init__(self, buffers: Buffers, *, card: ModelCard) -> None:
        self._buffers, self._width = buffers, card.rows

    def bind(self, binding: Untyped, *, rows: int, slot: int) -> None:
        """Bind forward passes with this many rows of logits, which go to the buffer's rows from `slot`."""
        binding.bind_ortvalue_input("rows", self._buffers.picked_value(rows))
        binding.bind_output("logits", "cpu", 0, np.float32, (rows, self._width), self.place(slot))

    def place(self, slot: int) -> int:
        """Return the address of the buffer's row `slot`."""
        return self._buffers.logits_pointer + slot * FLOAT_NBYTES * self._width


class PassInputs:
    """Fills and binds one model's inputs. in_place: the provider shares host memory. by_slot: see `POSITIONS`."""

    def __init__(self, buffers: Buffers, outputs: Outputs, *, in_place: bool, by_slot: bool) -> None:
        self._buffers, self._outputs = buffers, outputs
        self._in_place, self._by_slot = in_place, by_slot

    def bind_lengths(self, binding: Untyped) -> None:
        """Bind the lengths: once per state, or in every pass on a device."""
        binding.bind_ortvalue_input("seqlens_k", self._buffers.last_slot_value)
        binding.bind_ortvalue_input("total_length", self._buffers.total_value)

    def bind(self, state: OnnxState, tokens: Sequence[int], *, start: int, rows: Sequence[int], slot: int) -> None:
        """Bind a pass over the pending rows from `start`; the logits of `rows` go to the buffer's rows from `slot`."""
        self._fill(state, tokens, start=start, rows=rows)
        binding, width = state.binding, len(tokens)
        if not self._in_place:
            self.bind_lengths(binding)
            state.bound_width = 0
            state.bound_rows = -1
        if state.bound_width != width:
            state.bound_width = 0  # after an interrupt between the two bindings, both are bound again
            ids, positions = self._buffers.width_values(width)
            binding.bind_ortvalue_input("input_ids", ids)
            if not self._by_slot:
                binding.bind_ortvalue_input(POSITIONS, positions)
            state.bound_width = width
        if self._by_slot:
            self._bind_slots(state, total=state.length + start + width)
        place = self._outputs.place(slot)
        if state.bound_rows != len(rows) or state.bound_place != place:
            state.bound_rows = -1
            self._outputs.bind(binding, rows=len(rows), slot=slot)
            state.bound_rows, state.bound_place = len(rows), place

    def _fill(self, state: OnnxState, tokens: Sequence[int], *, start: int, rows: Sequence[int]) -> None:
        buffers, width = self._buffers, len(tokens)
        total = state.length + start + width
        buffers.ids[:width] = tokens
        buffers.pick(rows)
        buffers.last_slot[0] = total - 1
        buffers.total[0] = total
        if state.tree is None:
            buffers.positions[:width] = buffers.counter[total - width : total]
        else:
            buffers.positions[:width] = np.add(state.tree.depths(start, start + width), state.length)

    def _bind_slots(self, state: OnnxState, *, total: int) -> None:
        """Bind the positions of all used slots: the slot itself, except for a tree's pending rows."""
        positions = self._buffers.counter[:total]
        if state.tree is not None:
            positions = positions.copy()
            positions[state.length :] = np.add(state.tree.depths(0, total - state.length), state.length)
        state.binding.bind_cpu_input(POSITIONS, positions)


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
        parents = state.tree.parents(start + width)
        state.bound_parents = self._value(parents)  # not every version of the engine's binding keeps it alive
        binding.bind_ortvalue_input(PARENTS, state.bound_parents)
