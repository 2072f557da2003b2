"""Base class of the states over a native context: row counts, lease, and rollback."""

from edgedecode.errors import CapabilityError

from ...row_state import RowState, check_crop
from ..llama_context import Context


class ContextState(RowState):
    """The rows of one native context."""

    def __init__(self, context: Context, *, capacity: int, owner: object) -> None:
        super().__init__(capacity=capacity, owner=owner)
        self.context = context
        self._dirty = False
        """Whether the context may hold rows that are not counted, after a failed or interrupted pass."""

    @property
    def nbytes(self) -> int:
        return self.context.lease.nbytes

    @property
    def closed(self) -> bool:
        return self.context.closed

    def crop(self, length: int) -> None:
        check_crop(length, settled=self._length)
        if length == 0:
            self._clear()
        elif self._dirty or self._pending or length < self._length:
            self._cut(length)
        self._dirty = False
        self._settle(length)

    def commit(self, count: int) -> None:
        super().commit(count)
        self._dirty = False

    def close(self) -> None:
        self.context.close()
        self._settle(0)

    def _cut(self, length: int) -> None:
        """Drop all but the first `length` rows."""
        oldest = self.oldest_crop
        if length < oldest:
            raise CapabilityError(
                f"this model's memory cannot go back to length {length}, only to {oldest} or 0: prefill it from 0"
            )

    def _clear(self) -> None:
        """Drop all rows."""
        if not self.closed:
            self.context.clear()

    def _settle(self, length: int) -> None:
        self._length, self._pending = length, 0
