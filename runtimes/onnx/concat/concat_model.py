"""A model whose graph concatenates past and present itself, as exported by optimum.

It supports chains only. The graph cannot write into its past, so a state has two alternating buffers: one is read, the
other is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.model import AdapterUse, ModelCard, Output, RowRequest, State
from edgedecode.errors import CapabilityError, EdgeDecodeError, RuntimeUnavailable
from edgedecode.memory.budget import Budget, Lease
from edgedecode.memory.footprint import Holder
from edgedecode.pack.manifest import ModelEntry

from ...row_state import (
    LEAST_ROWS,
    check_chain,
    check_crop,
    check_kept,
    check_room,
    check_tokens,
    continues,
    wanted_rows,
)
from ..graph_session import cache_names, check_allocated
from ..onnx_engine import Untyped, first_line
from ..onnx_footprint import FLOAT_NBYTES, Footprint
from ..session_model import SessionModel, SessionState, split_rows

INDEX_NBYTES = 8


def concat_buffers(card: ModelCard, footprint: Footprint, *, picks: bool) -> tuple[Holder, Holder]:
    """Return the memory of a model's inputs, and of a full pass's logits if the graph cannot pick rows."""
    scratch = 0 if picks else footprint.rows_per_pass
    return (
        Holder(f"buffers:{card.name}", INDEX_NBYTES * 2 * card.context),
        Holder(f"logits:{card.name}", scratch * card.rows * FLOAT_NBYTES),
    )


def concat_holders(
    entry: ModelEntry, card: ModelCard, capacity: int, *, rows: int = 1, tree: bool = False
) -> tuple[Holder, ...]:
    """Return the memory of a model's first state; trees are not supported."""
    return (
        Holder(f"kv:{card.name}", concat_state_nbytes(entry, capacity)),
        Holder(f"logits:{card.name}", (rows + LEAST_ROWS) * card.rows * FLOAT_NBYTES),
    )


def concat_state_nbytes(entry: ModelEntry, capacity: int) -> int:
    """Return the bytes of a state of `capacity` rows: its past and its present."""
    return 2 * capacity * 2 * entry.layers * entry.kv_heads * entry.head_size * FLOAT_NBYTES


class ConcatState(SessionState):
    """Implements `State` for chains. A buffer holds, for each layer's keys and values, [kv heads, rows, head size].

    The buffer that is read has `stored` rows. Rows that were cropped or not kept stay there until the next pass, which
    first copies the remaining rows, because the rows of each head must be contiguous.
    """

    def __init__(
        self,
        entry: ModelEntry,
        *,
        capacity: int,
        lease: Lease,
        owner: object,
        binding: object,
        busy: AbstractContextManager[object],
    ) -> None:
        super().__init__(capacity=capacity, owner=owner, lease=lease, busy=busy)
        self.binding = binding
        self._stored = 0
        self._heads, self._size = entry.kv_heads, entry.head_size
        values = 2 * entry.layers
        self._buffers: FloatArray = np.zeros((2, values, entry.kv_heads * capacity * entry.head_size), np.float32)
        self._reading = 0

    def keep(self, path: Sequence[int]) -> None:
        check_kept(path, pending=self._pending)
        check_chain(path)
        self._length, self._pending = self._length + len(path), 0

    def crop(self, length: int) -> None:
        check_crop(length, settled=self._length)
        self._length, self._pending = length, 0

    def check(self, count: int, *, parents: Sequence[int] | None, name: str) -> None:
        """Raise unless `count` rows fit and continue the chain."""
        check_room(count, used=self._length + self._pending, capacity=self._capacity)
        if parents is not None and not continues(parents, count=count, after=self._pending):
            raise CapabilityError(f"{name} has no tree attention: its graph reads chains only")

    def trim(self, rows: int) -> None:
        """Compact the first `rows` stored rows into the other buffer."""
        if rows == self._stored:
            return
        if rows > 0:
            self._view(1 - self._reading, rows)[:] = self._view(self._reading, self._stored)[:, :, :rows]
        self._reading, self._stored = 1 - self._reading, rows

    def pointers(self, *, written: bool) -> list[int]:
        """Return the address of each value's past or, if written, of its present."""
        buffer = self._buffers[1 - self._reading if written else self._reading]
        return [int(values.ctypes.data) for values in buffer]

    def turn(self, rows: int) -> None:
        """Swap the buffers: the `rows` rows that a finished pass wrote are the next pass's past."""
        self._reading, self._stored = 1 - self._reading, rows

    def _drop(self) -> None:
        self._buffers = np.zeros((2, 1, 0), np.float32)
        self._stored = 0

    def _view(self, buffer: int, rows: int) -> FloatArray:
        """Return [values, kv heads, rows, head size] over a buffer."""
        used = self._buffers[buffer][:, : self._heads * rows * self._size]
        view: FloatArray = used.reshape(-1, self._heads, rows, self._size)
        return view


CONCAT = "concat"
"""The capability in a manifest that marks these graphs."""


class ConcatModel(SessionModel[ConcatState]):
    """Implements `LanguageModel` over one open session, which it owns with the given `leases`."""

    def __init__(
        self,
        engine: Untyped,
        *,
        session: Untyped,
        entry: ModelEntry,
        card: ModelCard,
        footprint: Footprint,
        budget: Budget,
        leases: Sequence[Lease],
    ) -> None:
        super().__init__(session, entry=entry, card=card, footprint=footprint, budget=budget, leases=leases)
        names = {value.name for value in session.get_inputs()}
        self._picks, self._positioned = "rows" in names, "position_ids" in names
        scratch = 0 if self._picks else footprint.rows_per_pass
        inputs, logits = concat_buffers(card, footprint, picks=self._picks)
        buffers = budget.reserve(*inputs)
        try:
            self._logits_lease = budget.reserve(*logits)
        except BaseException:
            buffers.release()
            raise
        self._leases += [buffers, self._logits_lease]
        self._scratch: FloatArray = np.empty((scratch, card.rows), np.float32)
        self._logits: FloatArray = np.empty((0, card.rows), np.float32)
        self._ones: IntArray = np.ones((1, card.context), np.int64)
        self._counter: IntArray = np.arange(card.context, dtype=np.int64)[None]
        self._past = cache_names("past_key_values", entry.layers)
        self._present = cache_names("present", entry.layers)

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        def make(lease: Lease, held: int) -> ConcatState:
            self._reserve_logits(held)
            binding = self._session.io_binding()
            return ConcatState(
                self._entry, capacity=capacity, lease=lease, owner=self, binding=binding, busy=self._lock
            )

        return self._new_state(capacity, concat_state_nbytes(self._entry, capacity), rows=rows, make=make)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        if adapter is not None:
            raise CapabilityError(f"{self._card.name} has no adapter inputs: {adapter.name!r} cannot be applied")
        wanted = wanted_rows(rows, count=len(tokens))
        with self._lock:
            own = self._own(state, ConcatState)
            check_tokens(tokens, self._card)
            own.check(len(tokens), parents=parents, name=self._card.name)
            try:
                logits = self._append(own, tokens, rows=wanted)
            except (EdgeDecodeError, MemoryError):
                raise
            except Exception as error:  # the engine's exceptions share no base class
                check_allocated(error, f"a pass of {len(tokens)} rows of the {self._card.name}")
                message = f"ONNX Runtime failed in a pass of {len(tokens)} rows: {first_line(error)}"
                raise RuntimeUnavailable(message) from error
            own.commit(len(tokens))
        return Output(logits)

    def _drop(self) -> None:
        self._scratch = self._logits = np.empty((0, self._card.rows), np.float32)

    def _shrink(self) -> None:
        with self._lock:
            count = max((state.rows for state in self._open_states()), default=0)
            if len(self._logits) > count:
                self._logits = np.empty((0, self._card.rows), np.float32)
                self._logits = np.empty((count, self._card.rows), np.float32)
                self._logits_lease.resize((len(self._scratch) + count) * self._card.rows * FLOAT_NBYTES)

    def _append(self, state: ConcatState, tokens: Sequence[int], *, rows: Sequence[int]) -> FloatArray:
        """Append `tokens` in one or several passes and collect the logits of `rows`."""
        order = sorted(range(len(rows)), key=rows.__getitem__)
        ascending = [rows[index] for index in order]
        logits = self._reserve_logits(len(rows) + LEAST_ROWS)
        before = state.length + state.pending
        rows_after = self._footprint.rows_after
        for start, stop, here, filled in split_rows(len(tokens), ascending, most=lambda row: rows_after(before + row)):
            state.trim(before + start)
            self._pass(state, tokens[start:stop], past=before + start, rows=here, out=logits[filled:])
        logits = logits[: len(rows)]
        return logits if ascending == list(rows) else logits[np.argsort(order)]

    def _pass(self, state: ConcatState, tokens: Sequence[int], *, past: int, rows: list[int], out: FloatArray) -> None:
        """Run one pass after `past` rows; the logits of `rows` go to the first rows of `out`."""
        width = len(tokens)
        total = past + width
        binding = state.binding
        ids = np.asarray([tokens], np.int64)
        self._bind(binding, "input_ids", ids)
        self._bind(binding, "attention_mask", self._ones[:, :total])
        if self._positioned:
            self._bind(binding, "position_ids", self._counter[:, past:total])
        self._bind_cache(state, past=past, total=total)
        picked = np.asarray(rows * 2 if len(rows) == 1 and width > 1 else rows, np.int64)
        if self._picks:
            self._bind(binding, "rows", picked)
            self._bind_logits(binding, (len(picked), self._card.rows), out)
        else:
            self._bind_logits(binding, (1, width, self._card.rows), self._scratch)
        self._session.run_with_iobinding(binding)
        if not self._picks:
            out[: len(rows)] = self._scratch[np.asarray(rows, np.int64)]
        state.turn(total)

    def _bind(self, binding: Untyped, name: str, values: IntArray) -> None:
        binding.bind_input(name, "cpu", 0, np.int64, values.shape, values.ctypes.data)

    def _bind_logits(self, binding: Untyped, shape: tuple[int, ...], out: FloatArray) -> None:
        binding.bind_output("logits", "cpu", 0, np.float32, shape, out.ctypes.data)

    def _bind_cache(self, state: ConcatState, *, past: int, total: int) -> None:
        heads, size = self._entry.kv_heads, self._entry.head_size
        for name, pointer in zip(self._past, state.pointers(written=False), strict=True):
            state.binding.bind_input(name, "cpu", 0, np.float32, (1, heads, past, size), pointer)
        for name, pointer in zip(self._present, state.pointers(written=True), strict=True):
            state.binding.bind_output(name, "cpu", 0, np.float32, (1, heads, total, size), pointer)

    def _reserve_logits(self, count: int) -> FloatArray:
        """Return the logits array, with at least `count` rows. Raises BudgetExceeded before growing."""
        if len(self._logits) < count:
            self._logits_lease.resize((len(self._scratch) + count) * self._card.rows * FLOAT_NBYTES)
            self._logits = np.empty((0, self._card.rows), np.float32)  # frees the old rows first
            self._logits = np.empty((count, self._card.rows), np.float32)
        return self._logits
