"""A llama.cpp context in a few calls: passes, their logits, and which cells which sequence holds. Knows no trees.

Everything the native code asserts holds before it is called: see `Context.decode` and the state's checks.
"""

from __future__ import annotations

import ctypes
from weakref import finalize

import numpy as np

from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.memory import Lease
from edgedecode.types import FloatArray

from .batch import Batch
from .engine import ContextPlan, Weights
from .log import Untyped

__all__ = ["Context"]

TO_THE_END = -1
NO_ROOM = 1


class Context:
    """Owns a native context and the leases over its memory, which go when it is closed or dropped.

    lease: what the engine reports of it. work: what it does not.
    """

    def __init__(self, weights: Weights, native: Untyped, *, plan: ContextPlan, lease: Lease, work: Lease) -> None:
        self.plan = plan
        self.lease = lease
        self._engine, self._api = weights.engine, weights.engine.api
        self._native = native
        self._memory = self._api.llama_get_memory(native)
        self._free = finalize(self, _free, weights, native, lease, work)  # which keeps the weights until then
        self.batch = Batch(self._api, rows=plan.rows_per_pass, sequences=plan.sequences)

    @property
    def closed(self) -> bool:
        return self._native is None

    def decode(self) -> None:
        """Run the pass that the batch holds. Raises RuntimeUnavailable with the engine's reason."""
        count = self.batch.count
        assert 0 < count <= self.plan.rows_per_pass, "more rows abort the process"
        assert self.batch.outputs <= self.plan.outputs, "more outputs abort the process"
        status = self._api.llama_decode(self._native, self.batch.value)
        if status:
            reason = "it finds no room in its cache" if status == NO_ROOM else self._engine.log.reason(newest=True)
            raise RuntimeUnavailable(f"llama.cpp failed in a pass of {count} rows ({reason}, code {status})")

    def logits(self, count: int, *, rows: int) -> FloatArray:
        """Return the newest pass's outputs, [count, rows]: the engine's own memory, which the view keeps alive."""
        pointer = self._api.llama_get_logits(self._native)
        memory: Untyped = (ctypes.c_float * (count * rows)).from_address(ctypes.addressof(pointer.contents))
        memory.owner = self
        view: FloatArray = np.frombuffer(memory, np.float32).reshape(count, rows)
        return view

    def copy(self, source: int, target: int, *, start: int, stop: int) -> None:
        """Let sequence `target` hold the cells of `source` at positions start to stop, too."""
        self._api.llama_memory_seq_cp(self._open_memory(), source, target, start, stop)

    def remove(self, id: int, start: int, stop: int = TO_THE_END) -> None:
        """Drop what a sequence holds from `start` on. Raises CapabilityError where the memory cannot."""
        if not self._api.llama_memory_seq_rm(self._open_memory(), id, start, stop):
            raise CapabilityError(f"llama.cpp cannot drop the positions from {start} on of this model's memory")

    def clear(self) -> None:
        """Drop everything."""
        self._api.llama_memory_clear(self._open_memory(), False)

    def first_position(self) -> int:
        """Return the oldest position that sequence 0 holds everywhere; -1 when it is empty."""
        return int(self._api.llama_memory_seq_pos_min(self._open_memory(), 0))

    def close(self) -> None:
        """Free the context and give its lease back. Idempotent."""
        self._native = self._memory = None
        self._free()

    def _open_memory(self) -> Untyped:
        """Return the native memory: without it a call would take the process down."""
        if self._memory is None:
            raise CapabilityError("the state is closed: make another with new_state")
        return self._memory


def _free(weights: Weights, native: Untyped, lease: Lease, work: Lease) -> None:
    weights.engine.api.llama_free(native)
    lease.release()
    work.release()
