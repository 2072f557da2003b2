"""Base classes of the models and states over an open session, and splitting of requests into passes.

A session of the engine runs one pass at a time into the model's buffers; the model's lock protects both.
"""

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
from .onnx_engine import Untyped
from .onnx_footprint import Footprint


class SessionState(RowState):
    """A state over a binding of the session. busy: the model's lock, held during a pass, when the engine writes."""

    def __init__(self, *, capacity: int, owner: object, lease: Lease, busy: AbstractContextManager[object]) -> None:
        super().__init__(capacity=capacity, owner=owner)
        self._lease = lease
        self._busy = busy
        self.rows = 0
        """Rows of logits that the model's buffers hold for this state."""
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
        """Free keys and values."""
        raise NotImplementedError


_State = TypeVar("_State", bound=SessionState)


class SessionModel(Generic[_State]):
    """Owns one open session and the given `leases`."""

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
        self._lock = RLock()  # reentrant: closing the model closes its states, which shrink the buffers
        """Held during a pass, and while a state is created or closed."""

    @property
    def card(self) -> ModelCard:
        return self._card

    def close(self) -> None:
        """Close every state and release the memory, after a running pass has ended. Idempotent."""
        with self._lock:
            for state in list(self._states):
                state.close()
            self._session = None
            self._drop()
            for lease in self._leases:
                lease.release()

    def _new_state(self, capacity: int, nbytes: int, *, rows: int, make: Callable[[Lease, int], _State]) -> _State:
        """Lease `nbytes` and create a state with its binding; `make` gets the lease and the rows of logits to hold."""
        check_capacity(capacity, self._card)
        with self._lock:  # a running pass may be writing to the buffers that grow
            if self._session is None:
                raise CapabilityError(f"the model {self._card.name} is closed")
            lease = self._budget.reserve(f"kv:{self._card.name}", nbytes)
            try:
                state = make(lease, rows + LEAST_ROWS)
                state.rows, state.on_close = rows + LEAST_ROWS, self._shrink
                finalize(state, lease.release)  # for a state that is collected without being closed
            except BaseException:
                lease.release()
                self._shrink()
                raise
            self._states.add(state)
        return state

    def _own(self, state: object, kind: type[_State]) -> _State:
        """Return the state after checking that it is open and belongs to this model."""
        if not isinstance(state, kind) or state.owner is not self:
            raise InputError(f"the state was not created by {self._card.name}'s new_state")
        if self._session is None or state.closed:
            raise CapabilityError(f"{self._card.name} or its state is closed")
        return state

    def _open_states(self) -> list[_State]:
        return [state for state in self._states if not state.closed]

    def _shrink(self) -> None:
        """Shrink the buffers to the needs of the open states."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Free the buffers."""
        raise NotImplementedError


class Piece(NamedTuple):
    """One pass of a request: its range, its rows with logits counted from `start`, and how many came before it."""

    start: int
    stop: int
    rows: list[int]
    filled: int


def split_rows(count: int, ascending: Sequence[int], *, most: Callable[[int], int]) -> Iterator[Piece]:
    """Split a request of `count` rows into passes, avoiding passes of one row. most: row limit of a pass by start."""
    start = filled = 0
    while start < count:
        width = min(count - start, most(start))
        if count - start - width == 1 and width > 2:
            width -= 1
        here = [row - start for row in ascending[filled:] if row < start + width]
        yield Piece(start, start + width, here, filled)
        filled += len(here)
        start += width
