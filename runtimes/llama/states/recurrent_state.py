"""One conversation's rows in a memory of recurrent layers: chains, that go back through snapshots or not at all.

Recurrent layers keep one state a sequence, overwritten by every row. A snapshot is another sequence that shares the
state of sequence 0 (`llama_memory_seq_cp`): the engine copies it when sequence 0 reads on, so that taking one costs
nothing but the memory planned for it. To drop rows, sequence 0 takes over the newest snapshot that is old enough, and
what was kept after it is owed: read again, with the next pass where it is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...row_state import check_chain, check_kept, check_room
from ..llama_context import Context
from .context_state import ContextState

__all__ = ["RecurrentState"]

MOST_OWED = 6
"""So many rows are read again with the next pass, and with those after it until a snapshot lies behind them; a pass of
their own costs more than that many rows more in another."""
EMPTY = 0
"""Instead of a sequence's id: nothing had been read."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The memory after `position` rows, held by the sequence `id`."""

    position: int
    id: int


class Snapshots:
    """The snapshots of one context, at most `most` of them, oldest first, beside the live sequence 0."""

    def __init__(self, context: Context, *, most: int) -> None:
        self._context = context
        self._free = list(range(most, 0, -1))
        self._held = [_Snapshot(0, EMPTY)]
        self._tokens: list[int] = []
        """Every row's token after the oldest snapshot."""
        self._read = 0
        """How many rows the live sequence has read."""
        self._sound = True
        """Whether it has read just those: a pass may have failed."""

    @property
    def oldest(self) -> int:
        """The smallest length but 0 that the memory can go back to."""
        return self._held[0].position

    @property
    def read(self) -> int:
        return self._read

    @property
    def owed(self) -> Sequence[int]:
        """The tokens that the live sequence has to read again before anything new."""
        return self._tokens[self._read - self.oldest :]

    def take(self) -> None:
        """Keep the memory as it is now, at the cost of the oldest snapshot where there are too many."""
        assert not self.owed
        if not self._read or self._held[-1].position == self._read:
            return
        base, start = self.oldest, 0
        if self._free:
            id = self._free.pop()
        else:
            forgotten = self._held.pop(0)
            start, id = forgotten.position, forgotten.id
        # The live text begins with what a forgotten snapshot held: attention layers share the rest with it now.
        self._context.copy(0, id, start=start, stop=self._read)
        self._held.append(_Snapshot(self._read, id))
        if self._held[0].id == EMPTY:
            self._held.pop(0)  # crop(0) needs no tokens
        del self._tokens[: self.oldest - base]

    def begin(self) -> None:
        """A pass starts that may fail."""
        self._sound = False

    def extend(self, tokens: Sequence[int], *, read: int) -> None:
        """The live sequence has read `read` more rows: those that were owed first, and then `tokens`, which are new."""
        self._tokens += tokens
        self._read += read
        self._sound = True

    def cut(self, length: int) -> None:
        """Go back to `length` rows, which is not below `oldest`, if the memory is not there already."""
        del self._tokens[length - self.oldest :]
        while self._held[-1].position > length:
            self._release(self._held.pop())
        if self._read > length or not self._sound:
            self._restore(self._held[-1])

    def clear(self) -> None:
        """Forget everything; the caller clears the context."""
        self._free += [snapshot.id for snapshot in self._held if snapshot.id != EMPTY]
        self._held = [_Snapshot(0, EMPTY)]
        self._tokens.clear()
        self._read, self._sound = 0, True

    def _restore(self, snapshot: _Snapshot) -> None:
        self._context.remove(0, 0)
        if snapshot.id != EMPTY:
            self._context.copy(snapshot.id, 0, start=0, stop=snapshot.position)
        self._read, self._sound = snapshot.position, True

    def _release(self, snapshot: _Snapshot) -> None:
        self._context.remove(snapshot.id, 0)
        self._free.append(snapshot.id)


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
