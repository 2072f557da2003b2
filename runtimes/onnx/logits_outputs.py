"""Binds a pass's outputs: the logits of the rows asked for."""

from __future__ import annotations

import numpy as np

from edgedecode.decoding.model import ModelCard

from .buffers import Buffers
from .onnx_engine import Untyped
from .onnx_footprint import FLOAT_NBYTES


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
