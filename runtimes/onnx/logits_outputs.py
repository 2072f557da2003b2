"""The heads of a graph: bind a pass's outputs for the head that computes its logits.

Every head's logits are bound in every pass, with zero rows for unused heads, which cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import ModelCard

from .buffers import Buffers
from .graph_session import HEADS_INPUT, LOCAL_IDS, LOCAL_ROWS, TRIM_LOGITS
from .onnx_engine import Untyped
from .onnx_footprint import FLOAT_NBYTES

FULL, TRIMMED = range(2)
"""Indices in the input with the number of rows per head."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadBinding:
    """A head: its index in the input with the rows per head, its output, and its logits per row."""

    place: int
    output: str
    width: int


class Heads:
    """Binds the outputs of one model's passes.

    inputs: the graph's input names, which show its heads. columns: its hidden size. trimmed: the trimmed head's
    vocabulary, if any.
    """

    def __init__(
        self,
        engine: Untyped,
        buffers: Buffers,
        *,
        card: ModelCard,
        inputs: Sequence[str],
        columns: int,
        trimmed: TrimmedVocabulary | None,
    ) -> None:
        value = engine.OrtValue.ortvalue_from_numpy
        self._buffers = buffers
        self._hidden_size = card.hidden_size
        self.full = HeadBinding(FULL, "logits", card.rows)
        self.trimmed = None if trimmed is None else HeadBinding(TRIMMED, TRIM_LOGITS, len(trimmed))
        self._fixed = [outlet for outlet in (self.full, self.trimmed) if outlet is not None]
        self._counts: IntArray = np.zeros(3 if LOCAL_ROWS in inputs else 2, np.int64)
        optional = {
            HEADS_INPUT: self._counts,
            LOCAL_ROWS: np.zeros((0, columns), np.float32),
            LOCAL_IDS: np.zeros(0, np.int64),
        }
        self._inputs = {name: value(array) for name, array in optional.items() if name in inputs}

    def bind_counts(self, binding: Untyped) -> None:
        """Bind the input with the number of rows per head, once per state."""
        for name, given in self._inputs.items():
            binding.bind_ortvalue_input(name, given)

    def bind(self, binding: Untyped, outlet: HeadBinding, *, rows: int, slot: int) -> None:
        """Bind forward passes of this many rows through a head; their logits go to the buffer's rows from `slot`."""
        binding.bind_ortvalue_input("rows", self._buffers.picked_value(rows))
        for head in self._fixed:
            self._bind_logits(binding, head, rows=rows if head is outlet else 0, slot=slot)
        if self._hidden_size:
            width = self._hidden_size
            _, hidden = self.places(outlet, slot)
            binding.bind_output("hidden", "cpu", 0, np.float32, (rows, width), hidden)

    def share(self, outlet: HeadBinding, rows: int) -> None:
        """Send all rows of the next pass through one head."""
        self._counts.fill(0)
        self._counts[outlet.place] = rows

    def places(self, outlet: HeadBinding, slot: int) -> tuple[int, int]:
        """Return the addresses of the logits and of the hidden states of the buffer's row `slot`."""
        row_nbytes = slot * FLOAT_NBYTES
        logits = self._buffers.logits_pointer + row_nbytes * outlet.width
        return logits, self._buffers.hidden_pointer + row_nbytes * self._hidden_size

    def logits(self, outlet: HeadBinding, count: int) -> FloatArray:
        """Return the buffer's first rows in the width of a head."""
        if outlet is self.full:
            return self._buffers.logits[:count]
        return self._buffers.logits.reshape(-1)[: count * outlet.width].reshape(count, outlet.width)

    def _bind_logits(self, binding: Untyped, outlet: HeadBinding, *, rows: int, slot: int) -> None:
        place, _ = self.places(outlet, slot)
        binding.bind_output(outlet.output, "cpu", 0, np.float32, (rows, outlet.width), place)
