"""What every state of a conversation counts: its settled rows, those that are pending, and how many fit."""

from __future__ import annotations

__all__ = ["RowState"]


class RowState:
    """A state of `capacity` rows whose first `length` are settled; the next `pending` wait for `keep`.

    owner: the model that made it.
    """

    def __init__(self, *, capacity: int, owner: object) -> None:
        self.owner = owner
        self._capacity = capacity
        self._length = self._pending = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def pending(self) -> int:
        return self._pending

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def oldest_crop(self) -> int:
        return 0

    def commit(self, count: int) -> None:
        """Count the rows of a finished pass as pending."""
        self._pending += count
