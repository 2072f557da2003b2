"""A minimal greedy loop on a pack's target graph: a reference for the ONNX runtime in `bench --overhead`.

One session, one IOBinding, past and present in the same buffers, arg-max in numpy, without checks and without rollback.
Session options are those of the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedecode.errors import CapabilityError
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx.concat.concat_model import CONCAT
from edgedecode.runtimes.onnx.graph_choice import choose_graph
from edgedecode.runtimes.onnx.graph_session import FULL_BIAS, WINDOW_BIAS, open_session
from edgedecode.runtimes.onnx.onnx_engine import Untyped, import_engine
from edgedecode.runtimes.onnx.providers.cpu import CpuProvider
from edgedecode.runtimes.threads import default_threads

__all__ = ["BareLoop"]

KV_TYPE = "float32"


class BareLoop:
    """Prefills a prompt, then decodes one row per pass. Each `read` starts an empty KV cache."""

    name = "bare IOBinding loop"
    runtime = "onnx"

    def __init__(
        self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str = KV_TYPE
    ) -> None:
        if kv_type != KV_TYPE:
            raise CapabilityError(f"its KV cache is {KV_TYPE}, that of this run is {kv_type}")
        if 0 < entry.window < capacity:
            raise CapabilityError(
                f"{capacity} positions exceed the model's attention window of {entry.window}, which the bare loop does "
                f"not implement: measure with a shorter prompt and answer"
            )
        graph = choose_graph(entry, folder, name=self.name, needs=())
        if CONCAT in graph.capabilities:
            raise CapabilityError("the bare loop updates the KV cache in place, and this model's graph does not")
        engine = import_engine()
        weights = folder / entry.weights
        threads = threads or default_threads(weights.stat().st_size)
        self.setting = f"context of {capacity}, {threads} threads, {KV_TYPE} KV cache"
        self._session = open_session(folder / graph.file, weights=weights, provider=CpuProvider(), threads=threads)
        shape = (1, entry.kv_heads, capacity, entry.head_size)
        names = [f"{layer}.{part}" for layer in range(entry.layers) for part in ("key", "value")]
        self._cache = {name: engine.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for name in names}
        self._rows = entry.rows
        self._capacity = capacity
        self._length = 0
        self._step = _Pass(self._session, self._cache, width=1, rows=entry.rows, capacity=capacity)

    def read(self, prompt: Sequence[int]) -> int:
        """Prefill the prompt in one pass and return the first token."""
        prefill = _Pass(self._session, self._cache, width=len(prompt), rows=self._rows, capacity=self._capacity)
        self._length = len(prompt)
        return prefill.run(prompt, start=0)

    def decode(self, token: int, count: int) -> list[int]:
        """Return the `count` tokens after `token`."""
        if self._length + count > self._capacity:
            raise CapabilityError(f"{count} tokens do not fit the {self._capacity - self._length} positions left")
        tokens: list[int] = []
        for _ in range(count):
            token = self._step.run((token,), start=self._length)
            self._length += 1
            tokens.append(token)
        return tokens


class _Pass:
    """A binding for passes of one width that score only the last row; its small inputs are updated in place."""

    def __init__(
        self,
        session: Untyped,
        cache: dict[str, Untyped],
        *,
        width: int,
        rows: int,
        capacity: int,
    ) -> None:
        self._session = session
        self._binding = binding = session.io_binding()
        self._tokens = np.zeros((1, width), np.int64)
        self._positions = np.zeros((1, width), np.int64)
        self._last = np.zeros(1, np.int32)
        self._total = np.zeros(1, np.int32)
        self._logits = np.zeros((1, rows), np.float32)
        self._bias = np.zeros(width * capacity, np.float32)
        self._bias_pointer = self._bias.ctypes.data
        self._offsets = np.arange(width)
        inputs = {value.name for value in session.get_inputs()}
        self._biases = [name for name in (FULL_BIAS, WINDOW_BIAS) if name in inputs]
        self._row = np.array([width - 1])
        arrays: list[tuple[str, npt.NDArray[np.generic]]] = [
            ("input_ids", self._tokens),
            ("position_ids", self._positions),
            ("seqlens_k", self._last),
            ("total_length", self._total),
            ("rows", self._row),
        ]
        for name, array in arrays:
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, value in cache.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        binding.bind_output("logits", "cpu", 0, np.float32, (1, rows), self._logits.ctypes.data)

    def run(self, tokens: Sequence[int], *, start: int) -> int:
        """Run a pass over `tokens` at position `start` and return the arg-max of the last row."""
        width = len(tokens)
        total = start + width
        self._tokens[0] = tokens
        self._positions[0] = self._offsets + start
        self._last[0] = total - 1
        self._total[0] = total
        shape = (1, 1, width, total)
        for name in self._biases:
            self._binding.bind_input(name, "cpu", 0, np.float32, shape, self._bias_pointer)
        self._session.run_with_iobinding(self._binding)
        return int(self._logits.argmax())
