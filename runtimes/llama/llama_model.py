"""A model on llama.cpp: split rows to append into forward passes.

A pass has at most the rows and outputs of its context's plan, since more would abort the process; longer requests are
split. The outputs of one pass are read in place, those of several passes are copied to a buffer.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TypeAlias
from weakref import WeakSet

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterUse, LowRank, ModelCard, Output, RowRequest, State
from edgedecode.errors import CapabilityError, InputError
from edgedecode.gguf.header import Header
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import ModelEntry

from ..row_state import check_capacity, check_tokens, continues, wanted_rows
from .llama_adapters import Adapters
from .llama_context import Context
from .llama_engine import Weights
from .llama_footprint import NO_EXTRAS, StateExtras, StatePlan, plan_state, row_nbytes
from .states.llama_state import LlamaState
from .states.recurrent_state import RecurrentState

AnyState: TypeAlias = LlamaState | RecurrentState


class LlamaModel:
    """Implements `LanguageModel`, `AdapterModel` and `AdapterFileModel`. Owns its weights and the given `leases`."""

    def __init__(
        self,
        weights: Weights,
        *,
        entry: ModelEntry,
        header: Header,
        card: ModelCard,
        budget: Budget,
        leases: Sequence[Lease],
        extras: StateExtras = NO_EXTRAS,
    ) -> None:
        self._weights = weights
        self._entry = entry
        self._header = header
        self._card = card
        self._budget = budget
        self._leases = list(leases)
        self._gathered_lease = budget.reserve(f"logits:{card.name}", 0)
        self._gathered: FloatArray = np.empty((0, card.rows), np.float32)
        self._contexts: WeakSet[Context] = WeakSet()
        self._lock = RLock()  # a lease may evict another adapter
        self._adapters = Adapters(weights, entry=entry, header=header, card=card, budget=budget)
        self._extras = extras

    @property
    def card(self) -> ModelCard:
        return self._card

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        if rows < 0:
            raise InputError(f"a state cannot have {rows} rows of logits: use 0 or more")
        check_capacity(capacity, self._card)
        self._check_open()
        plan = plan_state(self._entry, self._header, card=self._card, capacity=capacity, rows=rows, extras=self._extras)
        with ExitStack() as undo:
            lease = undo.enter_context(self._budget.reserve(f"kv:{self._card.name}", plan.nbytes))
            work = undo.enter_context(self._budget.reserve(f"work:{self._card.name}", plan.work_nbytes))
            state = self._make_state(plan, capacity, lease=lease, work=work)
            undo.callback(state.close)
            if rows > min(state.width, plan.context.outputs):  # they come from several passes
                with self._lock:
                    self._gather(rows)
            undo.pop_all()
        return state

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        count = len(tokens)
        wanted = wanted_rows(rows, count=count)
        with self._lock:
            own = self._own(state)
            check_tokens(tokens, self._card)
            above = self._parents(own, parents, count=count)
            if adapter is not None or not own.context.plain:
                own.context.apply(self._adapters.applied(adapter, rows=own.context.plan.rows_per_pass))
            mark = own.begin(count, above)
            try:
                logits = self._append(own, tokens, parents=above, rows=wanted)
            except BaseException:
                own.undo(mark)
                raise
            own.commit(count)
        return Output(logits)

    def add_adapter(self, digest: str, matrices: Sequence[LowRank]) -> None:
        with self._lock:
            self._check_open()
            self._adapters.add(digest, matrices, users=list(self._contexts))

    def add_adapter_file(self, digest: str, path: Path) -> None:
        with self._lock:
            self._check_open()
            self._adapters.add_file(digest, path, users=list(self._contexts))

    def prepare_adapter(self, use: AdapterUse) -> None:
        with self._lock:
            self._adapters.applied(use, rows=1)  # the engine scales the products itself

    def remove_adapter(self, digest: str, *, scale: float | None = None) -> None:
        if scale is None:
            with self._lock:
                self._adapters.remove(digest, users=list(self._contexts))

    def close(self) -> None:
        """Close every state and release the memory, after a running pass has ended. Idempotent."""
        with self._lock:
            for context in list(self._contexts):  # including those that only a logits view keeps alive
                context.close()
            self._adapters.close()
            self._weights.close()
            self._gathered = np.empty((0, self._card.rows), np.float32)
            for lease in (*self._leases, self._gathered_lease):
                lease.release()

    def _make_state(self, plan: StatePlan, capacity: int, *, lease: Lease, work: Lease) -> AnyState:
        """Create the context, and set the lease to the sizes that the engine reports."""
        engine = self._weights.engine
        native = engine.context(self._weights, plan.context)
        context = Context(
            self._weights, native, plan=plan.context, lease=lease, work=work, adapter_nbytes=plan.adapter_nbytes
        )
        self._contexts.add(context)
        try:
            lease.resize(sum(engine.log.sizes().values()) + plan.adapter_nbytes)
        except BaseException:
            context.close()
            raise
        if self._weights.recurrent:
            return RecurrentState(context, capacity=capacity, snapshots=self._extras.snapshots, owner=self)
        return LlamaState(context, capacity=capacity, window=self._weights.window, owner=self)

    def _append(
        self, state: AnyState, tokens: Sequence[int], *, parents: Sequence[int] | None, rows: Sequence[int]
    ) -> FloatArray:
        """Run the passes that append `tokens` and return the logits of `rows`."""
        is_ascending = len(rows) < 2 or (isinstance(rows, range) and rows.step > 0)
        ascending = rows if is_ascending else sorted(set(rows))
        plan = state.context.plan
        if len(tokens) <= state.width and 0 < len(ascending) <= plan.outputs:  # one pass, as in every decoding round
            state.append(tokens, start=state.pending, parents=parents, rows=ascending)
            logits = state.context.logits(len(ascending), rows=self._card.rows)
        else:
            logits = self._append_pieces(state, tokens, parents=parents, rows=ascending)
        return logits if ascending is rows or ascending == list(rows) else logits[_places(rows, ascending)]

    def _append_pieces(
        self, state: AnyState, tokens: Sequence[int], *, parents: Sequence[int] | None, rows: Sequence[int]
    ) -> FloatArray:
        """Run as many passes as the context's limits require; `rows` are ascending."""
        pieces = list(_pieces_of(len(tokens), rows, width=state.width, outputs=state.context.plan.outputs))
        several = sum(bool(piece.rows) for piece in pieces) > 1
        logits = self._gather(len(rows) if several else 0)
        filled = 0
        for piece in pieces:
            state.append(
                tokens[piece.start : piece.stop],
                start=state.pending + piece.start,
                parents=None if parents is None else parents[piece.start : piece.stop],
                rows=[row - piece.start for row in piece.rows],
            )
            if not piece.rows:
                continue
            found = state.context.logits(len(piece.rows), rows=self._card.rows)
            if several:
                logits[filled : filled + len(found)] = found
                filled += len(found)
            else:
                logits = found
        return logits

    def _gather(self, count: int) -> FloatArray:
        """Return a buffer for `count` rows. Raises BudgetExceeded before it grows."""
        if len(self._gathered) < count:
            self._gathered_lease.resize(count * row_nbytes(self._entry))
            self._gathered = np.empty((0, self._card.rows), np.float32)  # frees the old buffer first
            self._gathered = np.empty((count, self._card.rows), np.float32)
        return self._gathered[:count]

    def _parents(self, state: AnyState, parents: Sequence[int] | None, *, count: int) -> Sequence[int] | None:
        """Return the rows' parents if the state is or becomes a tree; None for a chain."""
        after = state.pending
        if parents is not None and not continues(parents, count=count, after=after):
            if not self._card.tree:
                raise CapabilityError(f"{self._card.name} reads chains only: its memory has no branches")
            return parents
        return range(after - 1, after - 1 + count) if state.branched else None

    def _check_open(self) -> None:
        if self._weights.closed:
            raise CapabilityError(f"the model {self._card.name} is closed")

    def _own(self, state: State) -> AnyState:
        if not isinstance(state, (LlamaState, RecurrentState)) or state.owner is not self:
            raise InputError(f"the state was not created by {self._card.name}'s new_state")
        if self._weights.closed or state.closed:
            raise CapabilityError(f"{self._card.name} or its state is closed")
        return state


@dataclass(frozen=True, slots=True)
class _Piece:
    """One pass of a request: its range of rows, and the outputs among them, both counted from the request's start."""

    start: int
    stop: int
    rows: Sequence[int]


def _pieces_of(count: int, ascending: Sequence[int], *, width: int, outputs: int) -> Iterator[_Piece]:
    """Split `count` rows, with outputs at the `ascending` rows, into passes of at most `width` rows and `outputs`."""
    start = filled = 0
    while start < count:
        stop = min(start + width, count)
        end = bisect_left(ascending, stop, filled)
        if end - filled > outputs:
            end = filled + outputs
            stop = ascending[end]
        yield _Piece(start, stop, ascending[filled:end])
        start, filled = stop, end


def _places(rows: Sequence[int], ascending: Sequence[int]) -> list[int]:
    """Return the index of each of `rows` in `ascending`."""
    place = {row: index for index, row in enumerate(ascending)}
    return [place[row] for row in rows]
