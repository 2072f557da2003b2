"""Drafting heads on ONNX Runtime: models whose rows also read features of the target, or their own last output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import HeadOutput
from edgedecode.decoding.model import State
from edgedecode.errors import CapabilityError

from .gguf.markov_rows import BlockFacts
from .graph_session import FEATURES_INPUT, HIDDEN, HIDDEN_INPUT, TARGET_CACHES
from .onnx_engine import Untyped
from .onnx_model import OnnxModel
from .onnx_state import OnnxState
from .providers.kv_cache import slot_count


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
            state.binding.bind_cpu_input(each, here if each == name else empty)
        self._after = np.empty((len(rows), self._width), np.float32)
        state.binding.bind_output(HIDDEN, "cpu", 0, np.float32, self._after.shape, self._after.ctypes.data)
        super()._pass(state, tokens, start=start, rows=rows, slot=slot)

    @property
    def _width(self) -> int:
        return int(self._empty[HIDDEN_INPUT].shape[-1])


class AssistantModel(HeadModel):
    """Implements `Assistant`, of Gemma 4. A state has the rows of one draft, and what `attend` says that they read."""

    def __init__(self, engine: Any, **parts: Any) -> None:  # noqa: ANN401  (those of OnnxModel)
        super().__init__(engine, **parts)
        self._shapes = {value.name: value.shape for value in self._session.get_inputs()}

    def attend(self, state: State, target: State, *, length: int) -> None:
        own = self._own(state, OnnxState)
        if not isinstance(target, OnnxState):
            raise CapabilityError("the assistant reads a target on the same engine: use --runtime onnx")
        shapes = {name: tuple(value.shape()) for name, value in target.shared.items()}
        for name in (name for names in TARGET_CACHES for name in names):
            if name not in shapes or (shapes[name][1], shapes[name][3]) != tuple(self._shapes[name][1::2]):
                raise CapabilityError(f"the assistant is for other keys and values than its target's ({name})")
            own.binding.bind_ortvalue_input(name, target.shared[name])
        own.shared, own.attended = target.shared, length

    def _bind(self, state: OnnxState) -> Untyped:
        """Bind empty keys and values too, which passes read whose state has no target, as when threads are chosen."""
        binding = super()._bind(state)
        slots, value = slot_count(state.capacity, tiled=True), self._engine.OrtValue.ortvalue_from_numpy
        state.shared = {
            name: value(np.zeros((1, self._shapes[name][1], slots, self._shapes[name][3]), np.float32))
            for names in TARGET_CACHES
            for name in names
        }
        for name, values in state.shared.items():
            binding.bind_ortvalue_input(name, values)
        return binding

    def _run(self, state: OnnxState, *, start: int, width: int) -> None:
        if state.attended:  # every row of a draft is at the position behind
            assert self._values is not None
            self._buffers.total[0] = state.attended
            self._values.bind(state.binding, [0] * width, np.full(width, state.attended, np.int64))
        super()._run(state, start=start, width=width)


class BlockModel(OnnxModel):
    """Implements `BlockHead`. Without features, as when threads are chosen, rows without logits read zeros."""

    def __init__(self, engine: Any, *, path: Path, **parts: Any) -> None:  # noqa: ANN401  (those of OnnxModel)
        super().__init__(engine, **parts)
        self._facts = BlockFacts(path)
        self.longest = min(self._facts.length, self._footprint.rows_per_pass - 1 - self._facts.unused)
        (self._wide,) = (value.shape[-1] for value in self._session.get_inputs() if value.name == FEATURES_INPUT)
        self._given: tuple[int, FloatArray] | None = None
        """The pending row that a call began with, and the features of those from it on."""

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        return super().new_state(capacity, rows=max(rows, self.longest + self._facts.unused), tree=tree)

    def draft_block(self, token: int, state: State, *, features: FloatArray, count: int) -> FloatArray:
        unused, mask = self._facts.unused, self._facts.mask
        block = [token, *[mask] * (count - 1 + unused)] if count else []
        most, read = self._footprint.rows_per_pass - len(block), 0
        with self._lock:
            self._given = state.pending, np.ascontiguousarray(features, np.float32)
            try:
                if count == 0 or len(features) > most:
                    read = len(features) - (most if count else 0)
                    self.forward([mask] * read, state, rows="none")
                if not count:
                    return np.empty((0, self._card.rows), np.float32)
                rest = len(features) - read
                tokens = [*[mask] * rest, *block]
                return self.forward(tokens, state, rows=range(rest, len(tokens))).logits[unused:]
            finally:
                self._given = None

    def link(self, row: FloatArray, before: int) -> None:
        self._facts.link(row, before)

    def _pass(self, state: OnnxState, tokens: Sequence[int], *, start: int, rows: Sequence[int], slot: int = 0) -> None:
        read = len(tokens) - len(rows)
        base, values = self._given or (start, np.zeros((read, self._wide), np.float32))
        here = np.ascontiguousarray(values[None, start - base : start - base + read])
        state.binding.bind_cpu_input(FEATURES_INPUT, here)
        super()._pass(state, tokens, start=start, rows=rows, slot=slot)
