"""Binds a pass's outputs: the logits, and the hidden states if the graph has them, of the rows asked for."""

from __future__ import annotations

import numpy as np

from edgedecode.decoding.model import ModelCard

from .buffers import Buffers
from .onnx_engine import Untyped
from .onnx_footprint import FLOAT_NBYTES


class Outputs:
    """Binds the outputs of one model's passes to its buffers."""

    def __init__(self, buffers: Buffers, *, card: ModelCard) -> None:
        self._buffers, self._width, self._hidden_size = buffers, card.rows, card.hidden_size

    def bind(self, binding: Untyped, *, rows: int, slot: int) -> None:
        """Bind forward passes with this many rows of logits, which go to the buffer's rows from `slot`."""
        binding.bind_ortvalue_input("rows", self._buffers.picked_value(rows))
        logits, hidden = self.places(slot)
        binding.bind_output("logits", "cpu", 0, np.float32, (rows, self._width), logits)
        if self._hidden_size:
            binding.bind_output("hidden", "cpu", 0, np.float32, (rows, self._hidden_size), hidden)

    def places(self, slot: int) -> tuple[int, int]:
        """Return the addresses of the logits and of the hidden states of the buffer's row `slot`."""
        row_nbytes = slot * FLOAT_NBYTES
        logits = self._buffers.logits_pointer + row_nbytes * self._width
        return logits, self._buffers.hidden_pointer + row_nbytes * self._hidden_size
