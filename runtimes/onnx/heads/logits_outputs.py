"""The heads of a graph: through which one a pass's rows leave, and what is bound for that.

Every head's logits are bound in every pass, with no rows for those that it does not go through: these cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.decoding.arrays import FloatArray, IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import ModelCard

from ..buffers import Buffers
from ..graph_session import HEADS_INPUT, LOCAL_IDS, LOCAL_LOGITS, LOCAL_ROWS, TRIM_LOGITS, Untyped
from ..onnx_footprint import FLOAT_NBYTES

__all__ = ["LOCAL", "Heads", "Outlet"]

WHOLE, TRIMMED, LOCAL = range(3)
"""Places in the input that says how many of a pass's rows go to which head."""


@dataclass(frozen=True, slots=True, eq=False)
class Outlet:
    """A head as a pass leaves through it; each choice of a local one's ids is another."""

    place: int
    output: str
    width: int
    """Logits a row."""
    values: tuple[Untyped, Untyped] | None = None
    """What a local one computes with: the engine's values over its rows and their ids."""
    order: IntArray | None = None
    """In which column the engine writes each of its logits; None: in order."""


class Heads:
    """Binds the outputs of one model's passes.

    inputs: the graph's; one without further heads has the whole one alone. columns: its hidden size. trimmed: what a
    trimmed head knows.
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
        self.whole = Outlet(WHOLE, "logits", card.rows)
        self.trimmed = None if trimmed is None else Outlet(TRIMMED, TRIM_LOGITS, len(trimmed))
        self._fixed = [outlet for outlet in (self.whole, self.trimmed) if outlet is not None]
        self._several, self._named = HEADS_INPUT in inputs, LOCAL_IDS in inputs
        self._counts: IntArray = np.zeros(3, np.int64)
        self._counts_value = value(self._counts)
        nothing = value(np.zeros((0, columns), np.float32)), value(np.zeros(0, np.int64))
        self._unused = Outlet(LOCAL, LOCAL_LOGITS, 0, nothing)

    def bind_counts(self, binding: Untyped) -> None:
        """Bind what says how many rows go to which head, once a state."""
        if self._several:
            binding.bind_ortvalue_input(HEADS_INPUT, self._counts_value)

    def bind(self, binding: Untyped, outlet: Outlet, *, rows: int, slot: int) -> None:
        """Bind passes of so many rows through a head; their logits go to the buffer's rows from `slot`."""
        binding.bind_ortvalue_input("rows", self._buffers.picked_value(rows))
        for head in self._fixed:
            self._bind_logits(binding, head, rows=rows if head is outlet else 0, slot=slot)
        if self._several:
            self._bind_local(binding, outlet, rows=rows, slot=slot)
        if self._hidden_size:
            width = self._hidden_size
            _, hidden = self.places(outlet, slot)
            binding.bind_output("hidden", "cpu", 0, np.float32, (rows, width), hidden)

    def share(self, outlet: Outlet, rows: int) -> None:
        """Send all rows of the coming pass through one head."""
        self._counts.fill(0)
        self._counts[outlet.place] = rows

    def places(self, outlet: Outlet, slot: int) -> tuple[int, int]:
        """Return where the logits and the hidden states of the buffer's row `slot` lie: one may move alone."""
        row_nbytes = slot * FLOAT_NBYTES
        logits = self._buffers.logits_pointer + row_nbytes * outlet.width
        return logits, self._buffers.hidden_pointer + row_nbytes * self._hidden_size

    def logits(self, outlet: Outlet, count: int) -> FloatArray:
        """Return the buffer's first rows as a head has written them."""
        if outlet is self.whole:
            return self._buffers.logits[:count]
        logits = self._buffers.logits.reshape(-1)[: count * outlet.width].reshape(count, outlet.width)
        return logits if outlet.order is None else logits.take(outlet.order, axis=1)

    def _bind_logits(self, binding: Untyped, outlet: Outlet, *, rows: int, slot: int) -> None:
        place, _ = self.places(outlet, slot)
        binding.bind_output(outlet.output, "cpu", 0, np.float32, (rows, outlet.width), place)

    def _bind_local(self, binding: Untyped, outlet: Outlet, *, rows: int, slot: int) -> None:
        """Bind the local head with its rows where the pass goes through it, else with none."""
        local = outlet if outlet.place == LOCAL else self._unused
        self._bind_logits(binding, local, rows=rows if local is outlet else 0, slot=slot)
        assert local.values is not None
        values, ids = local.values
        binding.bind_ortvalue_input(LOCAL_ROWS, values)
        if self._named:
            binding.bind_ortvalue_input(LOCAL_IDS, ids)
