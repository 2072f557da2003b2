"""Items of past responses, to which clients of /v1/responses refer instead of sending them again."""

from collections.abc import Iterable
from typing import Any

from msgspec.json import decode, encode

from edgedecode import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.typed_json import described

from .responses import Item

_NBYTES, _ITEM_NBYTES = 1 << 20, 300
"""Of all items, and of one besides its JSON."""


class KeptItems:
    """The latest items, in a megabyte of the budget; none where it has no room. Only an item's id, a random one, finds
    it, so that one client's stay hidden from others.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._room: int | None = None
        self._found: dict[str, bytes] = {}
        self._nbytes = 0

    def keep(self, items: Iterable[Item]) -> None:
        """Keep items in the place of the oldest."""
        for item in items:
            self._found[item.id] = data = encode(item)
            self._nbytes += _ITEM_NBYTES + len(data)
        while self._nbytes > self._most():
            self._nbytes -= _ITEM_NBYTES + len(self._found.pop(next(iter(self._found))))

    def find(self, id: str) -> dict[str, Any] | None:
        """Return the item of an id, if it is still kept."""
        data = self._found.get(id)
        return None if data is None else decode(data, type=described(dict[str, Any]))

    def _most(self) -> int:
        """Return the room for items, which is leased for the first."""
        if self._room is None:
            try:
                self._budget.reserve("items of past responses", _NBYTES)
                self._room = _NBYTES
            except BudgetExceeded:
                self._room = 0
        return self._room
