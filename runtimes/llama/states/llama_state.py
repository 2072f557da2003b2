"""One conversation's rows in llama.cpp: what is settled, what is pending, and which sequence each branch has.

The engine lets a row see the cells that share its sequence, at smaller positions. So every leaf of the tree has an id
of its own, which all its ancestors and the settled positions carry too. A row's first child goes on with its parent's
id; every further child takes a new one, and the path above it is added to that id: by `llama_memory_seq_cp` for what
lies in the cache, by a longer list of ids for rows of the same pass. Settled positions always carry id 0. Cells of rows
that were dropped leave holes in the engine's cache, which later rows fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.errors import CapabilityError, InputError

from ...row_state import check_chain, check_kept, check_room
from ..llama_context import Context
from .context_state import ContextState

__all__ = ["LlamaState"]

ROOT = -1


@dataclass(frozen=True, slots=True)
class Fork:
    """Before the pass: the new id `target` must hold `source`'s first `positions` positions, too."""

    source: int
    target: int
    positions: int


@dataclass(slots=True)
class PassPlan:
    """One pass: the ids and the depth of each of its rows, and the forks to make before it."""

    ids: list[list[int]]
    depths: list[int]
    forks: list[Fork]


@dataclass(frozen=True, slots=True)
class Mark:
    """How the tree was: the number of its rows, and each id's newest row."""

    count: int
    tips: dict[int, int]


class Sequences:
    """The tree of one state's pending rows; starts as a chain on id 0."""

    def __init__(self, chain: int, *, most: int, settled: int) -> None:
        self._parents = list(range(-1, chain - 1))
        self._depths = list(range(chain))
        self._owners = [0] * chain
        """Per row, the id it was made with; every other id on it belongs to a descendant's branch."""
        self._tips = {0: chain - 1}
        self._most = most
        self._settled = settled

    @property
    def ids(self) -> Sequence[int]:
        """The ids in use."""
        return tuple(self._tips)

    def mark(self) -> Mark:
        """Remember the tree as it is."""
        return Mark(len(self._parents), dict(self._tips))

    def undo(self, mark: Mark) -> None:
        """Forget what came after `mark`."""
        del self._parents[mark.count :], self._depths[mark.count :], self._owners[mark.count :]
        self._tips = dict(mark.tips)

    def end(self, id: int) -> int:
        """Return how many positions an id in use has, settled ones included."""
        tip = self._tips[id]
        return self._settled + (self._depths[tip] + 1 if tip >= 0 else 0)

    def grow(self, parents: Sequence[int]) -> PassPlan:
        """Append one pass's rows. Raises CapabilityError, the tree partly grown, when there are too many branches."""
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
        """Return an id that this row and everything above it carries."""
        return self._owners[row]

    def _fork(self, parent: int, owner: int, *, start: int, plan: PassPlan) -> int:
        """Make a branch below `parent`; rows of this pass above it carry its id too."""
        target = len(self._tips)
        if target >= self._most:
            raise CapabilityError(
                f"more than {self._most} branches at once: ask new_state for more rows, or draft fewer branches"
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
    """Implements `State`. Sequence 0 holds what is settled, and the pending rows of a chain.

    window: positions that window layers see, 0 for none. float_keys: whether keys are kept as floats; the memory in
    which the engine would unpack others to rotate them is not planned.
    """

    def __init__(self, context: Context, *, capacity: int, window: int, float_keys: bool, owner: object) -> None:
        super().__init__(context, capacity=capacity, owner=owner)
        self._window = window
        self._float_keys = float_keys
        self._branches: Sequences | None = None
        """The pending rows' shape; None: a chain."""
        self._held = [0] * context.plan.sequences
        """Per id but 0: how many settled positions it still holds from an earlier tree. The engine changes cells one by
        one, at a price: with this a tree of the next round costs its new positions, not the whole text."""

    @property
    def oldest_crop(self) -> int:
        """Beyond it only 0 is possible: forgetting everything."""
        if not self._window or self.closed:
            return 0
        first = self.context.first_position()  # window layers may have given old cells away
        return 0 if first <= 0 else first + self._window

    @property
    def shiftable(self) -> bool:
        return not self._window and self._float_keys and self.context.shiftable

    def shift(self, start: int, stop: int) -> None:
        self.crop(self._length)
        length = self._length - (stop - start)
        self._length, self._dirty = start, True  # what an interrupt in the middle leaves is dropped
        for id in range(1, len(self._held)):
            self.context.remove(id, 0)
            self._held[id] = 0
        self.context.remove(0, start, stop)
        self.context.move(0, stop, start - stop)
        self._length, self._dirty = length, False

    @property
    def width(self) -> int:
        """How many rows one pass may have."""
        return self.context.plan.rows_per_pass

    @property
    def branched(self) -> bool:
        """Whether the pending rows are a tree."""
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
        """Check that `count` rows fit, and return how the tree is now, for `undo`."""
        if self._dirty:
            self._mend()
        check_room(count, used=self._length + self._pending, capacity=self._capacity)
        mark = None if self._branches is None else self._branches.mark()
        if parents is not None and self._branches is None:
            self._branches = Sequences(self._pending, most=self.context.plan.sequences, settled=self._length)
        return mark

    def append(self, tokens: Sequence[int], *, start: int, parents: Sequence[int] | None, rows: Sequence[int]) -> None:
        """Run one pass of the pending rows from `start`; `rows` of it become outputs. Tree states need `parents`."""
        self._dirty = True
        if self._branches is None:
            self.context.batch.chain(tokens, position=self._length + start)
        else:
            assert parents is not None
            self._write_tree(self._branches, tokens, parents=parents)
        self.context.batch.ask(rows)
        self.context.decode()

    def undo(self, mark: Mark | None) -> None:
        """Forget rows that were not committed; `mark` is what `begin` returned."""
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
            self.context.remove(fork.target, 0)  # ids that share a row must start alike: copy what is left, all of it
            start = 0
        self.context.copy(fork.source, fork.target, start=start, stop=fork.positions)

    def _cut(self, length: int) -> None:
        self._cut_to(length, id=0)

    def _cut_to(self, length: int, *, id: int) -> None:
        """Leave the first `length` positions of one branch, on sequence 0, and what is settled of the others."""
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
        """Drop what a failed or interrupted pass left in the context."""
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
