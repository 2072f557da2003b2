"""What one sequence's recurrent layers hold, and how far it can go back: `kernels/recurrent.h` tells how they use it.

A layer's state has the rows up to a position; slots have the inputs of rows since. Settled rows that no state has yet
are `accepted`: the next pass applies them, so that dropped rows cost nothing. What a state has stays in it: to go back
further, all layers return to a snapshot of their states, and the caller reads the rows after it again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgedecode.errors import CapabilityError

from .onnx_engine import Untyped

if TYPE_CHECKING:
    from .ancestors import Ancestors

PAST_STATE, PRESENT_STATE = "past_state.", "present_state."
PAST_ROWS, PRESENT_ROWS = "past_rows.", "present_rows."
"""Prefixes of the names of states and slots among a graph's inputs and outputs."""
KEPT_ROWS = "kept_rows"
"""int32 [1 + accepted rows]: the slot of the pass's first row, then the slots of the accepted rows in order."""
SLOTS = 64
"""Rows whose inputs a layer keeps: more than a draft has, and the end of each piece of a prompt."""
HEADER = 16
"""Floats before a state's values, which hold its position."""
_EVERY, _LARGE = 64, 16
"""A snapshot is taken before a pass if the states have moved on by this many rows since the last one, or before a pass
of that many, which is a new message's."""
_POSITION_NBYTES, _LONG, _FEWEST, _MOST = 1 << 16, 1024, 2, 8
"""A short context allows this many bytes of snapshots per position, and from 1,024 positions on there are at least two:
rereading a short text costs little."""
_FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """One operator's memory: its name in the graph, a state's floats with its header, and the floats of a row."""

    name: str
    values: int
    width: int


def recurrent_shapes(inputs: Iterable[tuple[str, Sequence[int | str | None]]]) -> tuple[RecurrentShape, ...]:
    """Return the recurrent operators' memories among a graph's inputs, given by name and shape."""
    sizes = {name: dims[-1] for name, dims in inputs if dims and isinstance(dims[-1], int)}
    values = {name.removeprefix(PAST_STATE): size for name, size in sizes.items() if name.startswith(PAST_STATE)}
    return tuple(RecurrentShape(name, int(size), int(sizes[PAST_ROWS + name] or 0)) for name, size in values.items())


def recurrent_nbytes(shapes: Sequence[RecurrentShape], capacity: int) -> int:
    """Return the bytes of the recurrent layers of a state of `capacity` rows, with the snapshots."""
    states, rows = sum(each.values for each in shapes), sum(each.width for each in shapes)
    return _FLOAT_NBYTES * (states * (1 + _snapshot_count(states, capacity)) + SLOTS * rows)


def _snapshot_count(states: int, capacity: int) -> int:
    nbytes = _POSITION_NBYTES * min(_LONG, capacity)
    return max(_FEWEST if capacity >= _LONG else 0, min(_MOST, nbytes // max(1, _FLOAT_NBYTES * states)))


class Recurrence:
    """The recurrent layers' memory of one sequence. The state over it tells which rows are pending and settled."""

    def __init__(self, engine: Untyped, shapes: Sequence[RecurrentShape], *, capacity: int) -> None:
        self._states = np.zeros(sum(each.values for each in shapes), np.float32)
        self._snapshots: dict[int, npt.NDArray[np.float32]] = {}
        """By position, ascending."""
        count = _snapshot_count(self._states.size, capacity)
        self._free = [np.empty_like(self._states) for _ in range(count)]
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._memories: list[tuple[str, Untyped]] = []
        start = 0
        for each in shapes:
            state, slots = self._states[start : start + each.values], np.zeros((SLOTS, each.width), np.float32)
            self._memories += [
                (PAST_STATE + each.name, self._value(state)),
                (PAST_ROWS + each.name, self._value(slots)),
            ]
            start += each.values
        self._bound: list[int] = []
        self._list: Untyped = None
        self._base = 0
        """The position that all states have, unless a pass has failed since."""
        self._accepted: list[int] = []
        """The slots of the settled rows from there on."""
        self._before = 0
        """Pending rows in front of slot 0: states have them."""
        self._running = False
        self._uneven = self._lost = False
        """After a failed pass: layers may have the accepted rows, or rows that are not settled."""

    def bind_memory(self, binding: Untyped) -> None:
        """Bind what never changes."""
        for name, value in self._memories:
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past", "present", 1), value)

    def width(self, tree: "Ancestors", start: int, *, most: int) -> int:
        """Return how many rows a pass from this pending row may have: what all branches share goes alone."""
        count, trunk = tree.count - start, tree.trunk()
        fits = start - self._before + count <= SLOTS
        return most if fits or start >= trunk else min(most, trunk - start)

    def begin(self, binding: Untyped, *, length: int, start: int, width: int, tree: "Ancestors | None") -> None:
        """Bind the rows of a pass from pending row `start`, and take a snapshot if it is due.

        Raises CapabilityError if too many rows of a tree are pending, or the state must be rolled back first.
        """
        self._check(length, pending=start)
        if self._lost:
            raise CapabilityError("a pass of recurrent layers has failed: roll the state back before the next one")
        first = start - self._before
        chained = bool(first) and first + width > SLOTS  # earlier rows make room: states take them now
        alone = 0 if chained else first
        through = max(0, alone + width - SLOTS)
        if tree is not None and (chained or through) and tree.trunk() < start + through:
            raise CapabilityError(
                f"{start + width} rows of a tree are pending, and recurrent layers keep {SLOTS}: use shorter drafts"
            )
        accepted = list(range(first)) if chained else self._accepted
        self._snapshot(large=width >= _LARGE)
        rows = [alone, *accepted]
        if rows != self._bound or self._list is None:
            fresh = self._value(np.array(rows, np.int32))
            binding.bind_ortvalue_input(KEPT_ROWS, fresh)
            self._list, self._bound = fresh, rows  # the old one lives until then: an interrupt may come before
        self._next, self._risky = (start if chained else self._before) + through, chained or through > 0
        self._running = True

    def commit(self, length: int) -> None:
        """Note that the pass is over."""
        self._before = self._next
        self._base, self._accepted = length + self._before, []
        self._running = self._uneven = False

    def fail(self) -> None:
        """Note that the pass has failed. Nothing happens if none was begun."""
        self._uneven |= self._running
        self._lost |= self._running and self._risky
        self._running = False

    def check_kept(self, count: int) -> None:
        """Raise CapabilityError if `count` kept rows are fewer than the states have already applied."""
        if count < self._before:
            raise CapabilityError(
                f"{self._before} of the pending rows must be kept, and {count} are: roll back instead"
            )

    def keep(self, path: Sequence[int]) -> None:
        """Note that these pending rows are settled."""
        self._accepted = [row - self._before for row in path[self._before :]]
        self._before = 0

    def crop(self, length: int, *, settled: int, pending: int) -> int:
        """Drop pending rows, and settled ones from `length` on; return the length left, perhaps a shorter one."""
        self._check(settled, pending=pending)
        reached = settled if self._uneven and self._accepted else self._base
        if self._lost or length < reached:
            return self._restore(length)
        del self._accepted[length - self._base :]
        return length

    def close(self) -> None:
        """Free the memory."""
        self._memories.clear()
        self._snapshots.clear()
        self._free.clear()
        self._states = np.zeros(0, np.float32)
        self._list = None

    def _check(self, length: int, *, pending: int) -> None:
        """Note whether an interrupt came behind a pass, or between settling rows and noting them here."""
        self.fail()
        self._lost |= self._before > pending or self._base + len(self._accepted) != length + self._before

    def _snapshot(self, *, large: bool) -> None:
        moved = self._base - next(reversed(self._snapshots), 0)
        if self._uneven or moved < (1 if large else _EVERY) or not (self._free or self._snapshots):
            return
        if not self._free:  # the gap that it leaves is the smallest beside the way back to it
            held = [0, *self._snapshots, self._base]
            gaps = [(after - before) / (self._base - before) for before, after in zip(held, held[2:], strict=False)]
            self._free.append(self._snapshots.pop(held[1 + int(np.argmin(gaps))]))
        memory = self._free.pop()
        memory[:] = self._states
        self._snapshots[self._base] = memory

    def _restore(self, length: int) -> int:
        self._lost = True  # until the end: an interrupt may come in between
        while self._snapshots and next(reversed(self._snapshots)) > length:
            self._free.append(self._snapshots.popitem()[1])
        position = next(reversed(self._snapshots), 0)
        self._states[:] = self._snapshots[position] if position else 0.0
        self._base, self._accepted, self._before = position, [], 0
        self._running = self._uneven = self._lost = False
        return position
