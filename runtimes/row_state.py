"""The row counts of a KV state, and checks of the rows that a pass computes, keeps or drops."""

from collections.abc import Sequence

from edgedecode.decoding.model import ModelCard, RowRequest
from edgedecode.errors import CapabilityError, InputError


class RowState:
    """A state of `capacity` rows: the first `length` are settled, the next `pending` are not yet kept.

    owner: the model that created it.
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
"""Fewest logits rows of a pass of two or more rows. One-row kernels round differently from the others, so two rows are
computed even if one is asked for."""


def check_capacity(capacity: int, card: ModelCard) -> None:
    """Raise InputError or CapabilityError unless a model with this card supports a state of `capacity` rows."""
    if capacity < 1:
        raise InputError(f"a state of {capacity} rows is out of range: 1 or more")
    if capacity > card.context:
        raise CapabilityError(f"a state of {capacity} rows is too long: {card.name} supports {card.context} at most")


def check_tokens(tokens: Sequence[int], card: ModelCard) -> None:
    """Raise InputError if there are no tokens, or one is not an input id of the model."""
    if not len(tokens):
        raise InputError("a forward pass needs at least one token")
    count = (
        card.rows if card.token_ids is None else card.vocabulary_size
    )  # a trimmed draft has fewer rows than input ids
    if min(tokens) < 0 or max(tokens) >= count:
        raise InputError(f"token ids {min(tokens)} to {max(tokens)} are out of range: 0 to {count - 1}")


def check_room(count: int, *, used: int, capacity: int) -> None:
    """Raise CapabilityError unless `count` more rows fit."""
    if used + count > capacity:
        raise CapabilityError(
            f"{count} more rows do not fit the state: {used} of {capacity} are used (shorten the prompt, "
            f"or raise --ctx-size)"
        )


def check_kept(path: Sequence[int], *, pending: int) -> None:
    """Raise InputError if `path` has more rows than are pending."""
    if len(path) > pending:
        raise InputError(f"cannot keep {len(path)} pending rows: only {pending} are pending")


def check_chain(path: Sequence[int]) -> None:
    """Raise InputError unless `path` consists of the first rows of a chain."""
    for index, node in enumerate(path):
        if node != index:
            raise InputError(f"cannot keep pending row {node} as row {index} of the chain: keep the chain's first rows")


def check_crop(length: int, *, settled: int) -> None:
    """Raise CapabilityError unless a state of `settled` positions can be rolled back to `length`."""
    if not 0 <= length <= settled:
        raise CapabilityError(f"cannot go back to length {length}: {settled} positions are settled")


def continues(parents: Sequence[int], *, count: int, after: int) -> bool:
    """Return whether each row continues the one before it. Raises InputError if the parents are not a tree."""
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
            raise InputError(f"unknown rows {rows!r}: use none, last, all, or indices")
        return range(count if rows == "all" else 0)
    if len(rows) and not (0 <= min(rows) <= max(rows) < count and len(rows) <= count):
        raise InputError(f"rows {list(rows)[:8]} are out of range in a pass of {count} rows")
    return rows
