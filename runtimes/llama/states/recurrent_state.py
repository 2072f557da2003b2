"""One conversation's rows in a memory of recurrent layers: chains, that go back through snapshots or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from ...row_checks import check_chain, check_kept, check_room
from ..llama_context import Context
from .context_state import ContextState
from .snapshots import MOST_OWED, Snapshots

__all__ = ["RecurrentState"]


class RecurrentState(ContextState):
    """Implements `State`. Sequence 0 is the live one; snapshots: how many others hold an earlier memory.

    Without snapshots only whole passes may be kept, or everything be forgotten. With them rows that are kept of a pass
    are read again, together with the next pass.
    """

    branched = False

    def __init__(self, context: Context, *, capacity: int, snapshots: int, owner: object) -> None:
        super().__init__(context, capacity=capacity, owner=owner)
        self._snapshots = Snapshots(context, most=snapshots) if snapshots else None

    @property
    def oldest_crop(self) -> int:
        """Beyond it only 0 is possible: forgetting everything."""
        if self._snapshots is not None:
            return self._snapshots.oldest
        return self._length + self._pending + self._dirty

    @property
    def width(self) -> int:
        """How many rows one pass may have, beside those that are read again."""
        return self.context.plan.rows_per_pass - (MOST_OWED if self._snapshots is not None else 0)

    def keep(self, path: Sequence[int]) -> None:
        check_kept(path, pending=self._pending)
        check_chain(path)
        if len(path) < self._pending:
            self._cut(self._length + len(path))
        self._settle(self._length + len(path))

    def begin(self, count: int, parents: Sequence[int] | None) -> None:
        """Check that `count` rows of a chain fit, and keep the memory as it is now."""
        assert parents is None, "trees are refused by the card"
        if self._dirty:
            self._cut(self._length + self._pending)
            self._dirty = False
        check_room(count, used=self._length + self._pending, capacity=self._capacity)
        if self._snapshots is None:
            return
        while len(self._snapshots.owed) > MOST_OWED:
            self._read(self._snapshots.owed[: self.context.plan.rows_per_pass], rows=())
        if not self._pending and not self._snapshots.owed:
            self._snapshots.take()  # of what is settled only: pending rows may all be dropped

    def append(self, tokens: Sequence[int], *, start: int, parents: Sequence[int] | None, rows: Sequence[int]) -> None:
        """Run one pass of the pending rows from `start`; `rows` of it become outputs."""
        self._dirty = True
        if self._snapshots is None:
            self.context.batch.chain(tokens, position=self._length + start)
            self.context.batch.ask(rows)
            self.context.decode()
            return
        owed = self._snapshots.owed
        self._read([*owed, *tokens], rows=[len(owed) + row for row in rows], new=tokens)

    def undo(self, mark: object) -> None:
        """Forget rows that were not committed; without snapshots nothing can, and the state stays torn."""
        if self._dirty and self._snapshots is not None:
            self._cut(self._length + self._pending)
            self._dirty = False

    def _read(self, tokens: Sequence[int], *, rows: Sequence[int], new: Sequence[int] = ()) -> None:
        """Let the live sequence read `tokens`, of which `new` were not owed."""
        assert self._snapshots is not None
        self.context.batch.chain(tokens, position=self._snapshots.read)
        self.context.batch.ask(rows)
        self._snapshots.begin()
        self.context.decode()
        self._snapshots.extend(new, read=len(tokens))

    def _cut(self, length: int) -> None:
        super()._cut(length)
        if self._snapshots is not None:
            self._snapshots.cut(length)

    def _clear(self) -> None:
        super()._clear()
        if self._snapshots is not None:
            self._snapshots.clear()
