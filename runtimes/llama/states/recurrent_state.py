"""One conversation's rows in recurrent layers: chains only, rolled back through snapshots or not at all.

Recurrent layers keep one state per sequence, which every row overwrites. A snapshot is another sequence that shares the
state of sequence 0 (`llama_memory_seq_cp`); the engine copies the state when sequence 0 continues, so a snapshot costs
only the memory planned for it. To drop rows, sequence 0 takes over the latest snapshot that is old enough. Kept tokens
after the snapshot must be replayed: a few of them together with the next pass, many in passes before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...row_state import check_chain, check_kept, check_room
from ..llama_context import Context
from .context_state import ContextState

MOST_REPLAYED = 6
"""Up to this many rows are replayed with the next pass, and with those after it until there is a later snapshot: a
separate pass costs more than these additional rows in another pass."""
EMPTY = 0
"""In place of a sequence id: the snapshot of the empty memory."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The memory after `position` rows, held by sequence `id`."""

    position: int
    id: int


class Snapshots:
    """Up to `most` snapshots of one context, oldest first, besides the live sequence 0."""

    def __init__(self, context: Context, *, most: int) -> None:
        self._context = context
        self._free = list(range(most, 0, -1))
        self._held = [_Snapshot(0, EMPTY)]
        self._tokens: list[int] = []
        """The tokens of all rows after the oldest snapshot."""
        self._read = 0
        """Number of rows that the live sequence has processed."""
        self._sound = True
        """Whether it has processed exactly those; False during a pass and after a failed one."""

    @property
    def oldest(self) -> int:
        """The shortest length besides 0 that the memory can roll back to."""
        return self._held[0].position

    @property
    def read(self) -> int:
        return self._read

    @property
    def replay(self) -> Sequence[int]:
        """The tokens that the live sequence must process again before new ones."""
        return self._tokens[self._read - self.oldest :]

    def take(self) -> None:
        """Take a snapshot of the current memory, replacing the oldest one if there are too many."""
        assert not self.replay
        if not self._read or self._held[-1].position == self._read:
            return
        base, start = self.oldest, 0
        if self._free:
            id = self._free.pop()
        else:
            replaced = self._held.pop(0)
            start, id = replaced.position, replaced.id
        # The live text begins with the rows of the replaced snapshot, so attention layers only share the rest.
        self._context.copy(0, id, start=start, stop=self._read)
        self._held.append(_Snapshot(self._read, id))
        if self._held[0].id == EMPTY:
            self._held.pop(0)  # crop(0) works without it
        del self._tokens[: self.oldest - base]

    def begin(self) -> None:
        """Note that a pass starts, which may fail."""
        self._sound = False

    def extend(self, tokens: Sequence[int], *, read: int) -> None:
        """Note that the live sequence has processed `read` more rows: replayed ones, then the new `tokens`."""
        self._tokens += tokens
        self._read += read
        self._sound = True

    def cut(self, length: int) -> None:
        """Roll back to `length` rows, at least `oldest`."""
        del self._tokens[length - self.oldest :]
        while self._held[-1].position > length:
            self._release(self._held.pop())
        if self._read > length or not self._sound:
            self._restore(self._held[-1])

    def clear(self) -> None:
        """Drop all snapshots; the caller clears the context."""
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
    """Implements `State`. Sequence 0 is the live one. snapshots: number of sequences for snapshots.

    Without snapshots, a pass can only be kept completely, and the only rollback is to 0. With snapshots, the kept rows
    of a pass are replayed together with the next pass.
    """

    branched = False

    def __init__(self, context: Context, *, capacity: int, snapshots: int, owner: object) -> None:
        super().__init__(context, capacity=capacity, owner=owner)
        self._snapshots = Snapshots(context, most=snapshots) if snapshots else None

    @property
    def oldest_crop(self) -> int:
        """The shortest length to crop to, besides 0."""
        if self._snapshots is not None:
            return self._snapshots.oldest
        return self._length + self._pending + self._dirty

    @property
    def width(self) -> int:
        """Rows per pass, at most, besides replayed ones."""
        return self.context.plan.rows_per_pass - (MOST_REPLAYED if self._snapshots is not None else 0)

    def keep(self, path: Sequence[int]) -> None:
        check_kept(path, pending=self._pending)
        check_chain(path)
        if len(path) < self._pending:
            self._cut(self._length + len(path))
        self._settle(self._length + len(path))

    def begin(self, count: int, parents: Sequence[int] | None) -> None:
        """Check that `count` rows of a chain fit, and take a snapshot."""
        assert parents is None, "trees are refused by the card"
        if self._dirty:
            self._cut(self._length + self._pending)
            self._dirty = False
        check_room(count, used=self._length + self._pending, capacity=self._capacity)
        if self._snapshots is None:
            return
        while len(self._snapshots.replay) > MOST_REPLAYED:
            self._decode(self._snapshots.replay[: self.context.plan.rows_per_pass], rows=())
        if not self._pending and not self._snapshots.replay:
            self._snapshots.take()  # only of settled rows: pending rows may all be dropped

    def append(self, tokens: Sequence[int], *, start: int, parents: Sequence[int] | None, rows: Sequence[int]) -> None:
        """Run one pass of the pending rows from `start`, with outputs at `rows`."""
        self._dirty = True
        if self._snapshots is None:
            self.context.batch.chain(tokens, position=self._length + start)
            self.context.batch.ask(rows)
            self.context.decode()
            return
        replay = self._snapshots.replay
        self._decode([*replay, *tokens], rows=[len(replay) + row for row in rows], new=tokens)

    def undo(self, mark: object) -> None:
        """Drop rows that were not committed; without snapshots that is impossible, and the state stays dirty."""
        if self._dirty and self._snapshots is not None:
            self._cut(self._length + self._pending)
            self._dirty = False

    def _decode(self, tokens: Sequence[int], *, rows: Sequence[int], new: Sequence[int] = ()) -> None:
        """Run a pass of the live sequence over `tokens`, of which the `new` ones are not replayed."""
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
