"""What both kinds of models over one open session share: their states, and requests split into passes.

A session of the engine serves one pass at a time, and the buffers it writes are the model's: both stand under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet, finalize

from edgedecode.decoding.model import ModelCard
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import ModelEntry

from ..row_state import LEAST_ROWS, RowState, check_capacity
from .graph_session import Untyped
from .onnx_footprint import Footprint

__all__ = ["Piece", "SessionModel", "SessionState", "split_rows"]


class SessionState(RowState):
    """A state over a binding of the session. `busy` is what the model enters for a pass: the engine writes then."""

    def __init__(self, *, capacity: int, owner: object, lease: Lease, busy: AbstractContextManager[object]) -> None:
        super().__init__(capacity=capacity, owner=owner)
        self._lease = lease
        self._busy = busy
        self.rows = 0
        """How many rows of logits the model holds for it."""
        self.on_close: Callable[[], None] | None = None
        self.binding: Any = None

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    @property
    def closed(self) -> bool:
        return self.binding is None

    def close(self) -> None:
        with self._busy:
            self.binding = None
            self._length = self._pending = 0
            self._drop()
            self._lease.release()
            if self.on_close is not None:
                self.on_close()

    def _drop(self) -> None:
        """Let go of keys and values."""
        raise NotImplementedError


_State = TypeVar("_State", bound=SessionState)


class SessionModel(Generic[_State]):
    """Owns one open session, and the `leases` given."""

    def __init__(
        self,
        session: Untyped,
        *,
        entry: ModelEntry,
        card: ModelCard,
        footprint: Footprint,
        budget: Budget,
        leases: Sequence[Lease],
    ) -> None:
        self._session = session
        self._entry = entry
        self._card = card
        self._footprint = footprint
        self._budget = budget
        self._leases = list(leases)
        self._states: WeakSet[_State] = WeakSet()
        self._lock = RLock()  # closing the model closes its states, which give buffers back
        """Held for a pass, and while a state is made or closed: one of these at a time."""

    @property
    def card(self) -> ModelCard:
        return self._card

    def close(self) -> None:
        """Close every state and give the memory back; waits for a pass that is running. Idempotent."""
        with self._lock:
            for state in list(self._states):
                state.close()
            self._session = None
            self._drop()
            for lease in self._leases:
                lease.release()

    def _new_state(self, capacity: int, nbytes: int, *, rows: int, make: Callable[[Lease, int], _State]) -> _State:
        """Lease `nbytes` and make a state with its binding; `make` gets the lease and the rows of logits to hold."""
        check_capacity(capacity, self._card)
        with self._lock:  # the buffers that grow may be those that a pass is writing
            if self._session is None:
                raise CapabilityError(f"the model {self._card.name} is closed")
            lease = self._budget.reserve(f"kv:{self._card.name}", nbytes)
            try:
                state = make(lease, rows + LEAST_ROWS)
                state.rows, state.on_close = rows + LEAST_ROWS, self._give_back
                finalize(state, lease.release)  # a state that is dropped, not closed
            except BaseException:
                lease.release()
                self._give_back()
                raise
            self._states.add(state)
        return state

    def _own(self, state: object, kind: type[_State]) -> _State:
        """Return the state, checked to be an open one of this model's."""
        if not isinstance(state, kind) or state.owner is not self:
            raise InputError(f"the state was not made by {self._card.name}'s new_state")
        if self._session is None or state.closed:
            raise CapabilityError(f"{self._card.name} or its state is closed")
        return state

    def _open_states(self) -> list[_State]:
        return [state for state in self._states if not state.closed]

    def _give_back(self) -> None:
        """Shrink the buffers to what the open states need."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Let go of the buffers."""
        raise NotImplementedError


class Piece(NamedTuple):
    """One pass of a request: its rows, those of them that are computed, counted from `start`, and how many were
    computed before it."""

    start: int
    stop: int
    rows: list[int]
    filled: int


def split_rows(count: int, ascending: Sequence[int], *, most: Callable[[int], int]) -> Iterator[Piece]:
    """Split a request of `count` rows into passes, none of one row without need; `most` rows from a row on."""
    start = filled = 0
    while start < count:
        width = min(count - start, most(start))
        if count - start - width == 1 and width > 2:
            width -= 1
        here = [row - start for row in ascending[filled:] if row < start + width]
        yield Piece(start, start + width, here, filled)
        filled += len(here)
        start += width
