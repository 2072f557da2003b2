"""One conversation's rows in llama.cpp: settled rows, pending rows, and the sequence id of each branch.

In the engine, a row attends to cells that share a sequence with it, at smaller positions. So every leaf of the tree has
its own id, which its ancestors and the settled positions carry too. A row's first child continues its parent's id. Each
further child gets a new id, which is added to the path above it: with `llama_memory_seq_cp` for rows in the cache, with
a longer list of ids for rows of the same pass. Settled positions always carry id 0. Dropped rows leave holes in the
engine's cache, which later rows fill.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.errors import CapabilityError, InputError

from ...row_state import check_chain, check_kept, check_room
from ..llama_context import Context
from .context_state import ContextState

ROOT = -1


@dataclass(frozen=True, slots=True)
class Fork:
    """Before the pass, the first `positions` positions of `source` must be shared with the new id `target`."""

    source: int
    target: int
    positions: int


@dataclass(slots=True)
class PassPlan:
    """One pass: the ids and the depth of each row, and the forks to make before it."""

    ids: list[list[int]]
    depths: list[int]
    forks: list[Fork]


@dataclass(frozen=True, slots=True)
class Mark:
    """A point to roll the tree back to: its number of rows, and each id's last row."""

    count: int
    tips: dict[int, int]


class Sequences:
    """The tree of a state's pending rows; initially a chain on id 0."""

    def __init__(self, chain: int, *, most: int, settled: int) -> None:
        self._parents = list(range(-1, chain - 1))
        self._depths = list(range(chain))
        self._owners = [0] * chain
        """Per row, the id it was created with; its other ids belong to branches of descendants."""
        self._tips = {0: chain - 1}
        self._most = most
        self._settled = settled

    @property
    def ids(self) -> Sequence[int]:
        """The ids in use."""
        return tuple(self._tips)

    def mark(self) -> Mark:
        """Return a mark of the current tree, for `undo`."""
        return Mark(len(self._parents), dict(self._tips))

    def undo(self, mark: Mark) -> None:
        """Remove the rows after `mark`."""
        del self._parents[mark.count :], self._depths[mark.count :], self._owners[mark.count :]
        self._tips = dict(mark.tips)

    def end(self, id: int) -> int:
        """Return how many positions an id in use holds, including settled ones."""
        tip = self._tips[id]
        return self._settled + (self._depths[tip] + 1 if tip >= 0 else 0)

    def grow(self, parents: Sequence[int]) -> PassPlan:
        """Append one pass's rows. Raises CapabilityError, leaving the tree partly grown, for too many branches."""
        start = len(self._parents)
        plan = PassPlan(ids=[], depths=[], forks=[])
        for parent in parents:
            owner = 0 if parent < 0 else self._owners[parent]
            if self._tips[owner] != parent:
                owner = self._fork(parent, owner, start=start, plan=plan)
            row = len(self._parents)
            self._tips[owner] = row
            self._parents.append(parent)
            self._owners.append(owner)
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
            plan.ids.append([owner])
            plan.depths.append(self._depths[row])
        return plan

    def check_path(self, path: Sequence[int]) -> None:
        """Raise InputError unless `path` leads from a child of the last settled position down the pending rows."""
        above = ROOT
        for node in path:
            if not 0 <= node < len(self._parents) or self._parents[node] != above:
                raise InputError(f"pending row {node} does not continue row {above}: keep one path, root first")
            above = node

    def owner(self, row: int) -> int:
        """Return an id that this row and all its ancestors carry."""
        return self._owners[row]

    def _fork(self, parent: int, owner: int, *, start: int, plan: PassPlan) -> int:
        """Create a branch below `parent`, and add its id to its ancestors in this pass."""
        target = len(self._tips)
        if target >= self._most:
            raise CapabilityError(
                f"more than {self._most} branches at once: pass more rows to new_state, or draft fewer branches"
            )
        while parent >= start:
            plan.ids[parent - start].append(target)
            owner = 0 if self._parents[parent] < 0 else self._owners[self._parents[parent]]
            parent = self._parents[parent]
        positions = self._settled + (self._depths[parent] + 1 if parent >= 0 else 0)
        if positions:
            plan.forks.append(Fork(owner, target, positions))
        self._tips[target] = ROOT
        return target


class LlamaState(ContextState):
    """Implements `State`. Sequence 0 holds the settled rows, and the pending rows of a chain.

    window: of sliding-window layers in positions, 0 for none.
    """

    def __init__(self, context: Context, *, capacity: int, window: int, owner: object) -> None:
        super().__init__(context, capacity=capacity, owner=owner)
        self._window = window
        self._branches: Sequences | None = None
        """The pending rows' shape; None: a chain."""
        self._held = [0] * context.plan.sequences
        """Per id except 0: how many settled positions it still holds from an earlier tree. The engine updates cells one
        by one, so the next round's tree then only costs its new positions, not the full text."""

    @property
    def oldest_crop(self) -> int:
        """The shortest length to crop to, besides 0."""
        if not self._window or self.closed:
            return 0
        first = self.context.first_position()  # sliding-window layers may have reused old cells
        return 0 if first <= 0 else first + self._window

    @property
    def width(self) -> int:
        """Rows per pass, at most."""
        return self.context.plan.rows_per_pass

    @property
    def branched(self) -> bool:
        """Whether the pending rows form a tree."""
        return self._branches is not None

    def keep(self, path: Sequence[int]) -> None:
        count = len(path)
        check_kept(path, pending=self._pending)
        if self._branches is None:
            check_chain(path)
            if count < self._pending:
                self._cut(self._length + count)
        else:
            self._branches.check_path(path)
            self._cut_to(self._length + count, id=self._branches.owner(path[-1]) if count else 0)
        self._settle(self._length + count)

    def begin(self, count: int, parents: Sequence[int] | None) -> Mark | None:
        """Check that `count` rows fit, and return a mark for `undo`."""
        if self._dirty:
            self._mend()
        check_room(count, used=self._length + self._pending, capacity=self._capacity)
        mark = None if self._branches is None else self._branches.mark()
        if parents is not None and self._branches is None:
            self._branches = Sequences(self._pending, most=self.context.plan.sequences, settled=self._length)
        return mark

    def append(self, tokens: Sequence[int], *, start: int, parents: Sequence[int] | None, rows: Sequence[int]) -> None:
        """Run one pass of the pending rows from `start`, with outputs at `rows`. A tree needs `parents`."""
        self._dirty = True
        if self._branches is None:
            self.context.batch.chain(tokens, position=self._length + start)
        else:
            assert parents is not None
            self._write_tree(self._branches, tokens, parents=parents)
        self.context.batch.ask(rows)
        self.context.decode()

    def undo(self, mark: Mark | None) -> None:
        """Drop rows that were not committed; `mark` was returned by `begin`."""
        if mark is None:
            self._branches = None
        elif self._branches is not None:
            self._branches.undo(mark)
        if self._dirty:
            self._mend()

    def _write_tree(self, branches: Sequences, tokens: Sequence[int], *, parents: Sequence[int]) -> None:
        plan = branches.grow(parents)
        for fork in plan.forks:
            self._copy(fork)
        positions = [self._length + depth for depth in plan.depths]
        self.context.batch.tree(tokens, positions=positions, ids=plan.ids)

    def _copy(self, fork: Fork) -> None:
        start = self._held[fork.target]
        if self._window and self.context.first_position() > 0:
            self.context.remove(fork.target, 0)  # ids that share a row must start alike: copy all remaining positions
            start = 0
        self.context.copy(fork.source, fork.target, start=start, stop=fork.positions)

    def _cut(self, length: int) -> None:
        self._cut_to(length, id=0)

    def _cut_to(self, length: int, *, id: int) -> None:
        """Keep the first `length` positions of one branch on sequence 0, and the settled positions of the others."""
        super()._cut(length)
        self.context.remove(0, self._length if id else length)
        if id:
            self.context.copy(id, 0, start=self._length, stop=length)
        floor = min(self._length, length)
        used = () if self._branches is None else self._branches.ids
        for other in range(1, len(self._held)):
            if other in used or self._dirty or self._held[other] > floor:
                self._held[other] = floor if other in used else min(self._held[other], floor)
                self.context.remove(other, self._held[other])

    def _mend(self) -> None:
        """Drop the cells that a failed or interrupted pass left in the context."""
        branches = self._branches or Sequences(self._pending, most=1, settled=self._length)
        for id, held in enumerate(self._held):
            self.context.remove(id, branches.end(id) if id in branches.ids else held)
        self._dirty = False

    def _clear(self) -> None:
        super()._clear()
        self._held = [0] * len(self._held)

    def _settle(self, length: int) -> None:
        super()._settle(length)
        self._branches = None
