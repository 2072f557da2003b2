"""A drafting head on ONNX Runtime: a model whose rows also read features of the target, or its own last output."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import HeadOutput, State

from .graph_session import FEATURES_INPUT, HIDDEN, HIDDEN_INPUT
from .onnx_model import OnnxModel
from .onnx_state import OnnxState


class HeadModel(OnnxModel):
    """Implements `DraftHead`. Without features and hidden, as when threads are chosen, rows read zeros."""

    def __init__(self, engine: Any, **parts: Any) -> None:  # noqa: ANN401  (those of OnnxModel)
        super().__init__(engine, **parts)
        widths = {value.name: value.shape[-1] for value in self._session.get_inputs()}
        self._empty = {name: np.empty((1, 0, widths[name]), np.float32) for name in (FEATURES_INPUT, HIDDEN_INPUT)}
        self._given: tuple[int, str, FloatArray] | None = None
        """The pending row that a call began with, and what its rows read by which input."""
        self._after = np.empty((0, widths[HIDDEN_INPUT]), np.float32)

    def draft(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        features: FloatArray | None = None,
        hidden: FloatArray | None = None,
    ) -> HeadOutput:
        read = features if features is not None else hidden
        assert read is not None
        assert len(read) == len(tokens)
        name = FEATURES_INPUT if features is not None else HIDDEN_INPUT
        with self._lock:
            self._given = state.pending, name, np.ascontiguousarray(read, np.float32)
            try:
                logits = self.forward(tokens, state, rows="last").logits
            finally:
                self._given = None
            return HeadOutput(logits[0], self._after[0])

    def _pass(self, state: OnnxState, tokens: Sequence[int], *, start: int, rows: Sequence[int], slot: int = 0) -> None:
        base, name, values = self._given or (start, HIDDEN_INPUT, np.zeros((len(tokens), self._width), np.float32))
        here = values[None, start - base : start - base + len(tokens)]
        for each, empty in self._empty.items():
            state.binding.bind_cpu_input(each, np.ascontiguousarray(here) if each == name else empty)
        self._after = np.empty((len(rows), self._width), np.float32)
        state.binding.bind_output(HIDDEN, "cpu", 0, np.float32, self._after.shape, self._after.ctypes.data)
        super()._pass(state, tokens, start=start, rows=rows, slot=slot)

    @property
    def _width(self) -> int:
        return int(self._empty[HIDDEN_INPUT].shape[-1])
