"""A llama.cpp context in a few calls: passes, their logits, and which cells which sequence holds.

Everything the native code asserts holds before it is called: see `Context.decode` and the state's checks.
"""

from __future__ import annotations

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

from .embeddings import EmbeddingTable, RowReader
from .llama_engine import ContextPlan, Weights
from .llama_log import Untyped

__all__ = ["AppliedAdapter", "Context"]


class Batch:
    """A `llama_batch` of at most `rows` rows and `sequences` ids each, over numpy arrays it keeps alive.

    table: gives the engine rows of it in place of ids.
    """

    def __init__(self, api: Untyped, *, rows: int, sequences: int, table: EmbeddingTable | None = None) -> None:
        self._tokens = np.zeros(rows, np.int32)
        embeddings = np.zeros((rows, 0 if table is None else table.width), np.float32)
        self._reader = None if table is None else RowReader(table, embeddings)  # which keeps them alive
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._ids = np.zeros((rows, sequences), np.int32)
        self._outputs = np.zeros(rows, np.int8)
        self._steps = np.arange(rows, dtype=np.int32)
        self.count = 0
        self.outputs = 0
        """How many rows the batch holds, and how many of them are outputs."""
        self._branched = 0
        """How many rows hold something else than the one id 0."""
        starts = [_pointer(row, ctypes.c_int32) for row in self._ids]
        self._starts = (ctypes.POINTER(ctypes.c_int32) * rows)(*starts)
        self.value = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32) if table is None else None,
            embd=None if table is None else _pointer(embeddings, ctypes.c_float),
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
        """Mark these rows, and no others, as outputs."""
        self._outputs[: self.count] = 0
        for row in outputs:
            self._outputs[row] = 1
        self.outputs = len(outputs)

    def _begin(self, tokens: Sequence[int]) -> None:
        self.count = self.value.n_tokens = len(tokens)
        if self._reader is None:
            self._tokens[: self.count] = tokens
        else:
            self._reader.read(tokens)


def _pointer(array: npt.NDArray[np.generic], kind: Untyped) -> Untyped:
    return array.ctypes.data_as(ctypes.POINTER(kind))


TO_THE_END = -1
NO_ROOM = 1


@dataclass(frozen=True, slots=True)
class AppliedAdapter:
    """An adapter's address and scale; what its products need at most in one pass, in bytes."""

    native: int
    scale: float
    work_nbytes: int


class Context:
    """Owns a native context and the leases over its memory, which go when it is closed or dropped.

    lease: what the engine reports of it. work: what it does not. table: gives it rows in place of ids.
    """

    def __init__(
        self,
        weights: Weights,
        native: Untyped,
        *,
        plan: ContextPlan,
        lease: Lease,
        work: Lease,
        table: EmbeddingTable | None = None,
    ) -> None:
        self.plan = plan
        self.lease = lease
        self._engine, self._api = weights.engine, weights.engine.api
        self._native = native
        self._memory = self._api.llama_get_memory(native)
        self._free = finalize(self, _free, weights, native, lease, work)  # which keeps the weights until then
        self._adapter: AppliedAdapter | None = None
        self._applied = True
        self._compute_nbytes = self._engine.log.sizes().get("compute", 0)
        """What the lease holds for the engine's graph, which is reserved again when adapters change."""
        self._changed = False
        self._busy = RLock()
        """Held in every native call, which lets other threads run: one of them may close the context."""
        self.feed(table, rows=plan.rows_per_pass)

    @property
    def closed(self) -> bool:
        return self._native is None

    def feed(self, table: EmbeddingTable | None, *, rows: int) -> None:
        """Let the next passes, of at most `rows` rows, be given rows of the table; None: ids."""
        self.batch = Batch(self._api, rows=rows, sequences=self.plan.sequences, table=table)

    def decode(self) -> None:
        """Run the pass that the batch holds. Raises RuntimeUnavailable with the engine's reason."""
        count = self.batch.count
        assert 0 < count <= self.plan.rows_per_pass, "more rows abort the process"
        assert self.batch.outputs <= self.plan.outputs, "more outputs abort the process"
        with self._busy:
            self._check_open()
            if self._changed:
                self._engine.log.begin()
            status = self._api.llama_decode(self._native, self.batch.value)
            if self._changed:
                self._changed = False
                self._charge(self._engine.log.sizes().get("compute", self._compute_nbytes))
        if status:
            reason = "it finds no room in its cache" if status == NO_ROOM else self._engine.log.reason(newest=True)
            raise RuntimeUnavailable(f"llama.cpp failed in a pass of {count} rows ({reason}, code {status})")

    def logits(self, count: int, *, rows: int) -> FloatArray:
        """Return the newest pass's outputs, [count, rows]: the engine's own memory, which the view keeps alive."""
        with self._busy:
            self._check_open()
            pointer = self._api.llama_get_logits(self._native)
        memory: Untyped = (ctypes.c_float * (count * rows)).from_address(ctypes.addressof(pointer.contents))
        memory.owner = self
        view: FloatArray = np.frombuffer(memory, np.float32).reshape(count, rows)
        return view

    @property
    def plain(self) -> bool:
        """Whether the next pass has no adapter as it is."""
        return self._adapter is None and self._applied

    def apply(self, adapter: AppliedAdapter | None) -> None:
        """Let the next passes have this adapter, or none. Raises BudgetExceeded, and nothing has changed."""
        if adapter == self._adapter and self._applied:
            return
        if self._adapter is None and adapter is not None:
            self._charge(self._compute_nbytes + adapter.work_nbytes)  # an upper bound, until the engine reports it
        self._applied = False  # an interrupt in the middle must look like neither
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
        """Take an adapter off that is about to be freed."""
        mine = self._adapter is not None and self._adapter.native == native
        if (mine or not self._applied) and not self.closed:
            self.apply(None)

    def _charge(self, compute_nbytes: int) -> None:
        """Set the lease to what the engine's graph works with."""
        self.lease.resize(self.lease.nbytes - self._compute_nbytes + compute_nbytes)
        self._compute_nbytes = compute_nbytes

    def copy(self, source: int, target: int, *, start: int, stop: int) -> None:
        """Let sequence `target` hold the cells of `source` at positions start to stop, too."""
        with self._busy:
            self._api.llama_memory_seq_cp(self._open_memory(), source, target, start, stop)

    def remove(self, id: int, start: int, stop: int = TO_THE_END) -> None:
        """Drop what a sequence holds from `start` on. Raises CapabilityError where the memory cannot."""
        with self._busy:
            removed = self._api.llama_memory_seq_rm(self._open_memory(), id, start, stop)
        if not removed:
            raise CapabilityError(f"llama.cpp cannot drop the positions from {start} on of this model's memory")

    @property
    def shiftable(self) -> bool:
        """Whether positions can move: the model's are rotary and one a row, and its layers share one cache."""
        with self._busy:
            return bool(self._api.llama_memory_can_shift(self._open_memory()))

    def move(self, id: int, start: int, by: int) -> None:
        """Add `by` to the positions of a sequence from `start` on; the next pass rotates their keys."""
        with self._busy:
            self._api.llama_memory_seq_add(self._open_memory(), id, start, TO_THE_END, by)

    def clear(self) -> None:
        """Drop everything."""
        with self._busy:
            self._api.llama_memory_clear(self._open_memory(), False)

    def first_position(self) -> int:
        """Return the oldest position that sequence 0 holds everywhere; -1 when it is empty."""
        with self._busy:
            return int(self._api.llama_memory_seq_pos_min(self._open_memory(), 0))

    def close(self) -> None:
        """Free the context and give its lease back; waits for a pass that is running. Idempotent."""
        with self._busy:
            self._native = self._memory = None
            self._free()

    def _open_memory(self) -> Untyped:
        """Return the native memory: without it a call would take the process down."""
        self._check_open()
        return self._memory

    def _check_open(self) -> None:
        if self._memory is None:
            raise CapabilityError("the state is closed: make another with new_state")


def _free(weights: Weights, native: Untyped, lease: Lease, work: Lease) -> None:
    weights.engine.api.llama_free(native)
    lease.release()
    work.release()
