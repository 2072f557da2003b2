"""Pending rows as llama.cpp's sequences: which ids a row carries, and what to copy before it.

The engine lets a row see the cells that share its sequence, at smaller positions. So every leaf of the tree has an id
of its own, which all its ancestors and the settled positions carry too. A row's first child goes on with its parent's
id; every further child takes a new one, and the path above it is added to that id: by `llama_memory_seq_cp` for what
lies in the cache, by a longer list of ids for rows of the same pass. Settled positions always carry id 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.errors import CapabilityError, InputError

__all__ = ["Fork", "PassPlan", "Sequences"]

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
