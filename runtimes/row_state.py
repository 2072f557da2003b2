"""What every state of a conversation counts, and what is checked of rows to be computed, kept or dropped."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.decoding.model import ModelCard, RowRequest
from edgedecode.errors import CapabilityError, InputError

__all__ = [
    "LEAST_ROWS",
    "RowState",
    "check_capacity",
    "check_chain",
    "check_crop",
    "check_kept",
    "check_room",
    "check_tokens",
    "continues",
    "wanted_rows",
]


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


LEAST_ROWS = 2
"""Kernels for one row round differently from those for several: of a pass of two and more, two rows are computed where
one is asked for, so that it does not meet the one-row kernel."""


def check_capacity(capacity: int, card: ModelCard) -> None:
    """Raise InputError or CapabilityError unless a model of this card can have a state of `capacity` rows."""
    if capacity < 1:
        raise InputError(f"a state of {capacity} rows: give 1 or more")
    if capacity > card.context:
        raise CapabilityError(f"a state of {capacity} rows: {card.name} holds {card.context} at most")


def check_tokens(tokens: Sequence[int], card: ModelCard) -> None:
    """Raise InputError unless there are tokens, all of them ids the model can read."""
    if not len(tokens):
        raise InputError("a forward pass needs at least one token")
    count = card.rows if card.token_ids is None else card.vocabulary_size  # a trimmed head speaks less than it reads
    if min(tokens) < 0 or max(tokens) >= count:
        raise InputError(f"token ids go from 0 to {count - 1}, not {min(tokens)} to {max(tokens)}")


def check_room(count: int, *, used: int, capacity: int) -> None:
    """Raise CapabilityError unless `count` more rows fit."""
    if used + count > capacity:
        raise CapabilityError(
            f"{count} more rows do not fit the state: {used} of {capacity} are used (shorten the prompt, "
            f"or raise --ctx-size)"
        )


def check_kept(path: Sequence[int], *, pending: int) -> None:
    """Raise InputError when more rows are to be kept than are pending."""
    if len(path) > pending:
        raise InputError(f"{len(path)} pending rows cannot be kept: there are {pending}")


def check_chain(path: Sequence[int]) -> None:
    """Raise InputError unless `path` is the first rows of a chain."""
    for index, node in enumerate(path):
        if node != index:
            raise InputError(f"pending row {node} is not row {index} of the chain: keep its first rows")


def check_crop(length: int, *, settled: int) -> None:
    """Raise CapabilityError unless a state of `settled` positions can be cut to `length`."""
    if not 0 <= length <= settled:
        raise CapabilityError(f"cannot go back to length {length}: {settled} positions are settled")


def continues(parents: Sequence[int], *, count: int, after: int) -> bool:
    """Tell whether each row continues the one before it. Raises InputError when they are no tree."""
    if len(parents) != count:
        raise InputError(f"{len(parents)} parents for {count} tokens")
    chain = True
    for index, parent in enumerate(parents, after):
        if not -1 <= parent < index:
            raise InputError(f"row {index} has parent {parent}: parents come before their children, -1 is the root")
        chain = chain and parent == index - 1
    return chain


def wanted_rows(rows: RowRequest, *, count: int) -> Sequence[int]:
    """Return the indices of the rows asked for, of `count`. Raises InputError."""
    if isinstance(rows, str):
        if rows == "last":
            return (count - 1,)
        if rows not in ("none", "all"):
            raise InputError(f"rows {rows!r}: none, last, all, or indices")
        return range(count if rows == "all" else 0)
    if len(rows) and not (0 <= min(rows) <= max(rows) < count and len(rows) <= count):
        raise InputError(f"rows {list(rows)[:8]} of a pass of {count} rows")
    return rows
