"""Wrap a llama.cpp context: forward passes, their logits, and the cells of each sequence.

Every condition that the native code asserts is checked before a call: see `Context.decode` and the state's checks.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from weakref import finalize

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.memory.budget import Lease

from .llama_engine import ContextPlan, Weights
from .llama_log import Untyped


class Batch:
    """A `llama_batch` of at most `rows` rows with `sequences` ids each, over numpy arrays it keeps alive."""

    def __init__(self, api: Untyped, *, rows: int, sequences: int) -> None:
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._ids = np.zeros((rows, sequences), np.int32)
        self._outputs = np.zeros(rows, np.int8)
        self._steps = np.arange(rows, dtype=np.int32)
        self.count = 0
        self.outputs = 0
        """Number of rows in the batch, and number of outputs among them."""
        self._branched = 0
        """Number of leading rows that may hold ids other than the single id 0."""
        starts = [_pointer(row, ctypes.c_int32) for row in self._ids]
        self._starts = (ctypes.POINTER(ctypes.c_int32) * rows)(*starts)
        self.value = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=ctypes.cast(self._starts, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def chain(self, tokens: Sequence[int], *, position: int) -> None:
        """Write rows that continue sequence 0 from `position`."""
        count = len(tokens)
        self._begin(tokens)
        if count == 1:
            self._positions[0] = position
        else:
            np.add(self._steps[:count], position, out=self._positions[:count])
        if self._branched:
            self._counts[: self._branched] = 1
            self._ids[: self._branched, 0] = 0
            self._branched = 0

    def tree(self, tokens: Sequence[int], *, positions: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """Write rows at these positions with these ids."""
        count = len(tokens)
        self._begin(tokens)
        self._positions[:count] = positions
        self._branched = max(self._branched, count)
        for row, own in enumerate(ids):
            self._counts[row] = len(own)
            self._ids[row, : len(own)] = own

    def ask(self, outputs: Sequence[int]) -> None:
        """Mark only these rows as outputs."""
        self._outputs[: self.count] = 0
        for row in outputs:
            self._outputs[row] = 1
        self.outputs = len(outputs)

    def _begin(self, tokens: Sequence[int]) -> None:
        self.count = self.value.n_tokens = len(tokens)
        self._tokens[: self.count] = tokens


def _pointer(array: npt.NDArray[np.generic], kind: Untyped) -> Untyped:
    return array.ctypes.data_as(ctypes.POINTER(kind))


TO_THE_END = -1
NO_ROOM = 1


@dataclass(frozen=True, slots=True)
class AppliedAdapter:
    """An adapter's address and scale, and the bytes its products need at most in one pass."""

    native: int
    scale: float
    work_nbytes: int


class Context:
    """Owns a native context and the leases over its memory, which are released when it is closed or collected.

    lease: the memory that the engine reports. work: the memory that it does not report. adapter_nbytes: the lease's
    share for an adapter that may be used.
    """

    def __init__(
        self,
        weights: Weights,
        native: Untyped,
        *,
        plan: ContextPlan,
        lease: Lease,
        work: Lease,
        adapter_nbytes: int = 0,
    ) -> None:
        self.plan = plan
        self.lease = lease
        self._engine, self._api = weights.engine, weights.engine.api
        self._native = native
        self._memory = self._api.llama_get_memory(native)
        self._free = finalize(self, _free, weights, native, lease, work)  # also keeps the weights alive until then
        self._adapter: AppliedAdapter | None = None
        self._applied = True
        self._compute_nbytes = self._engine.log.sizes().get("compute", 0)
        """The size of the engine's graph, which the engine reserves again when adapters change."""
        self._planned_nbytes = self._charged_nbytes = self._compute_nbytes + adapter_nbytes
        """The lease's share for that graph: as planned, and now."""
        self._changed = False
        self._busy = RLock()
        """Held during native calls: they release the GIL, and another thread may close the context meanwhile."""
        self.batch = Batch(self._api, rows=plan.rows_per_pass, sequences=plan.sequences)

    @property
    def closed(self) -> bool:
        return self._native is None

    def decode(self) -> None:
        """Run a forward pass of the batch. Raises RuntimeUnavailable with the engine's reason."""
        count, outputs = self.batch.count, self.batch.outputs
        if (
            not 0 < count <= self.plan.rows_per_pass or outputs > self.plan.outputs
        ):  # the engine would abort the process
            most = f"{self.plan.rows_per_pass} and {self.plan.outputs}"
            raise ValueError(f"a pass of {count} rows with {outputs} outputs: the context was planned for {most}")
        with self._busy:
            self._check_open()
            if self._changed:
                self._engine.log.begin()
            status = self._api.llama_decode(self._native, self.batch.value)
            if self._changed:
                self._changed = False
                if (compute := self._engine.log.sizes().get("compute")) is not None:
                    self._compute_nbytes = compute
                    self._charge(compute)
        if status:
            reason = "its KV cache is full" if status == NO_ROOM else self._engine.log.reason(newest=True)
            raise RuntimeUnavailable(f"llama.cpp failed in a pass of {count} rows ({reason}, code {status})")

    def logits(self, count: int, *, rows: int) -> FloatArray:
        """Return the last pass's outputs, [count, rows]: a view of the engine's memory that keeps it alive."""
        with self._busy:
            self._check_open()
            pointer = self._api.llama_get_logits(self._native)
        memory: Untyped = (ctypes.c_float * (count * rows)).from_address(ctypes.addressof(pointer.contents))
        memory.owner = self
        view: FloatArray = np.frombuffer(memory, np.float32).reshape(count, rows)
        return view

    @property
    def plain(self) -> bool:
        """Whether the next pass would use no adapter."""
        return self._adapter is None and self._applied

    def apply(self, adapter: AppliedAdapter | None) -> None:
        """Use this adapter, or none, in the next passes. Raises BudgetExceeded before anything changes."""
        if adapter == self._adapter and self._applied:
            return
        if self._adapter is None and adapter is not None:
            self._charge(self._compute_nbytes + adapter.work_nbytes)  # an upper bound, until the engine reports it
        self._applied = False  # after an interrupt, neither adapter counts as applied
        with self._busy:
            self._check_open()
            if adapter is None:
                self._api.llama_set_adapters_lora(self._native, None, 0, None)
            else:
                kind = self._api.llama_adapter_lora_p_ctypes
                natives, scales = (kind * 1)(ctypes.cast(adapter.native, kind)), (ctypes.c_float * 1)(adapter.scale)
                self._api.llama_set_adapters_lora(self._native, natives, 1, scales)
        self._adapter, self._changed, self._applied = adapter, True, True

    def drop(self, native: int) -> None:
        """Stop using an adapter that is about to be freed."""
        mine = self._adapter is not None and self._adapter.native == native
        if (mine or not self._applied) and not self.closed:
            self.apply(None)

    def _charge(self, compute_nbytes: int) -> None:
        """Update the lease for a new size of the engine's graph."""
        charged = max(compute_nbytes, self._planned_nbytes)
        self.lease.resize(self.lease.nbytes - self._charged_nbytes + charged)
        self._charged_nbytes = charged

    def copy(self, source: int, target: int, *, start: int, stop: int) -> None:
        """Share the cells of sequence `source` at positions start to stop with sequence `target`."""
        with self._busy:
            self._api.llama_memory_seq_cp(self._open_memory(), source, target, start, stop)

    def remove(self, id: int, start: int, stop: int = TO_THE_END) -> None:
        """Drop a sequence's cells from `start` on. Raises CapabilityError if this kind of memory cannot."""
        with self._busy:
            removed = self._api.llama_memory_seq_rm(self._open_memory(), id, start, stop)
        if not removed:
            raise CapabilityError(f"llama.cpp cannot drop the positions from {start} on in this model's memory")

    def clear(self) -> None:
        """Drop all cells."""
        with self._busy:
            self._api.llama_memory_clear(self._open_memory(), False)

    def first_position(self) -> int:
        """Return the oldest position that sequence 0 holds in every layer; -1 if it is empty."""
        with self._busy:
            return int(self._api.llama_memory_seq_pos_min(self._open_memory(), 0))

    def close(self) -> None:
        """Free the context and release its leases, after a running pass has ended. Idempotent."""
        with self._busy:
            self._native = self._memory = None
            self._free()

    def _open_memory(self) -> Untyped:
        """Return the native memory. Raises CapabilityError if closed, as the native call would crash the process."""
        self._check_open()
        return self._memory

    def _check_open(self) -> None:
        if self._memory is None:
            raise CapabilityError("the state is closed: create another with new_state")


def _free(weights: Weights, native: Untyped, lease: Lease, work: Lease) -> None:
    weights.engine.api.llama_free(native)
    lease.release()
    work.release()
