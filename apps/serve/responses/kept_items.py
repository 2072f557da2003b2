"""Past responses and their items, to which clients of /v1/responses refer instead of sending them again."""

from collections.abc import Sequence
from typing import Any

from msgspec.json import decode, encode

from edgedecode import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.typed_json import described

from ..requests.asked import PastTurn
from .replies import Item

_NBYTES, _ITEM_NBYTES = 1 << 20, 300
"""Of all items, and of one besides its JSON."""


class KeptItems:
    """The latest responses to requests of one key, in a megabyte of the budget; none where it has no room. Only the id
    of a response or an item, a random one, finds it, so that one client's stay hidden from others.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._room: int | None = None
        self._found: dict[str, bytes] = {}
        self._nbytes = 0

    def keep(self, response: str, turn: PastTurn, output: Sequence[Item]) -> None:
        """Keep a response, with the items of its request and of its answer, in the place of the oldest.

        One that would take the place of nearly all others is not kept.
        """
        whole = {"previous": turn.previous, "items": [*turn.items, *output]}
        for id, value in (*((item.id, item) for item in output), (response, whole)):
            if len(data := encode(value)) <= _NBYTES // 4:
                self._found[id] = data
                self._nbytes += _ITEM_NBYTES + len(data)
        while self._nbytes > self._most():
            self._nbytes -= _ITEM_NBYTES + len(self._found.pop(next(iter(self._found))))

    def find(self, id: str) -> dict[str, Any] | None:
        """Return the item of an id, if it is still kept."""
        kept = self._kept(id)
        return kept if kept and "previous" not in kept else None

    def before(self, response: str) -> list[dict[str, Any]] | None:
        """Return the items up to a response and its own; None: it, or one that it continues, is not kept any more."""
        found: list[dict[str, Any]] = []
        while response:
            whole = self._kept(response)
            if "previous" not in whole:
                return None
            found[:0] = whole["items"]
            response = whole["previous"]
        return found

    def _kept(self, id: str) -> dict[str, Any]:
        """Return an item, or a response, which alone has a previous one; empty: it is not kept."""
        kept: dict[str, Any] = decode(self._found.get(id, b"{}"), type=described(dict[str, Any]))
        return kept

    def _most(self) -> int:
        """Return the room for items, which is leased for the first."""
        if self._room is None:
            try:
                self._budget.reserve("items of past responses", _NBYTES)
                self._room = _NBYTES
            except BudgetExceeded:
                self._room = 0
        return self._room
