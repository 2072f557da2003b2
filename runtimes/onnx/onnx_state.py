"""One sequence's keys and values, and the engine binding over them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.decoding.model import ModelCard
from edgedecode.memory.budget import Holder, Lease
from edgedecode.pack.manifest import ModelEntry

from ..row_state import LEAST_ROWS, check_chain, check_crop, check_kept, check_room, continues
from .buffers import bias_copies, logits_nbytes
from .onnx_engine import Untyped
from .onnx_footprint import Footprint
from .providers.kv_cache import CacheShape, KvCache, slot_count
from .recurrence import recurrent_nbytes
from .session_model import SessionState

if TYPE_CHECKING:
    from .ancestors import Ancestors
    from .features import FeatureRows
    from .recurrence import Recurrence

TREE_ROW_NBYTES = 64 + 72
"""A pending row of a tree: cached ancestors (512 masks of one bit per row), parent and depth."""


def state_nbytes(footprint: Footprint, capacity: int, *, kv_type: str = "float32", tiled: bool = False) -> int:
    """Return the bytes of a state of `capacity` rows; tiled: for our attention."""
    position = position_nbytes(footprint.caches, kv_type=kv_type) + TREE_ROW_NBYTES
    return slot_count(capacity, tiled=tiled) * position + recurrent_nbytes(footprint.recurrent, capacity)


def position_nbytes(caches: Sequence[CacheShape], *, kv_type: str) -> int:
    """Return the bytes of one position's keys and values."""
    return sum(each.heads * each.size for each in caches) * np.dtype(kv_type).itemsize


def state_holders(
    entry: ModelEntry,
    card: ModelCard,
    footprint: Footprint,
    capacity: int,
    *,
    tiled: bool,
    more: tuple[Holder, ...] = (),
    rows: int = 1,
    tree: bool = False,
) -> tuple[Holder, ...]:
    """Return the memory of a model's first state, including buffers. more: what else it makes a session hold."""
    window = not tiled and 0 < entry.window < capacity
    buffers = bias_copies(footprint, tree=tree and card.tree and not tiled, window=window)
    copies = footprint.logits_copies
    logits = logits_nbytes(rows + LEAST_ROWS, rows=card.rows, copies=copies)
    return (
        Holder(f"kv:{card.name}", state_nbytes(footprint, capacity, kv_type=card.kv_type, tiled=tiled)),
        Holder(f"logits:{card.name}", logits),
        *([Holder(f"buffers:{card.name}", buffers)] if buffers else []),
        *more,
    )


class TreeState(SessionState):
    """A state whose slots 0 to length are settled; the next `pending` slots hold pending rows in arrival order."""

    tree: "Ancestors | None" = None
    """The tree of the pending rows; None: a chain."""

    def keep(self, path: Sequence[int]) -> None:
        count = len(path)
        check_kept(path, pending=self._pending)
        if self.tree is None:
            check_chain(path)
        elif count:
            self.tree.check_path(path, pending=self._pending)
            if path[-1] >= count:  # else its rows are there already
                self._gather(path)
        self._settle(self._length + count)

    def crop(self, length: int) -> None:
        check_crop(length, settled=self._length)
        self._settle(length)

    def grow(self, count: int, *, parents: Sequence[int] | None) -> None:
        """Check that `count` rows fit, and add them to the tree. They count as pending only after `commit`."""
        check_room(count, used=self._length + self._pending, capacity=self._capacity)
        if parents is not None and not continues(parents, count=count, after=self._pending):
            if self.tree is None:
                from .ancestors import Ancestors  # late: chains need none

                self.tree = Ancestors(self._pending)
            self.tree.grow(parents, after=self._pending)
        elif self.tree is not None:
            self.tree.grow(range(self._pending - 1, self._pending - 1 + count), after=self._pending)

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the positions of pending rows."""
        if self.tree is None:
            return range(self._length + start, self._length + stop)
        return [self._length + depth for depth in self.tree.depths(start, stop)]

    def _drop(self) -> None:
        self.tree = None

    def _gather(self, path: Sequence[int]) -> None:
        """Move the path's rows to the first pending slots in all layers."""
        raise NotImplementedError

    def _settle(self, length: int) -> None:
        self._length, self._pending, self.tree = length, 0, None


class OnnxState(TreeState):
    """Implements `State` over the given cache, which it owns."""

    def __init__(
        self, cache: KvCache, *, capacity: int, lease: Lease, owner: object, busy: AbstractContextManager[object]
    ) -> None:
        super().__init__(capacity=capacity, owner=owner, lease=lease, busy=busy)
        self.plans_tree = False
        """Whether the model's buffers must hold a bias for trees because of this state."""
        self.cache = cache
        self.shared: Mapping[str, Untyped] = {}
        """The keys and values that an assistant reads, by the names of its inputs."""
        self.attended = 0
        """How many positions of its target an assistant's rows read."""
        self.recurrence: Recurrence | None = None
        """The memory of recurrent layers."""
        self.features: FeatureRows | None = None
        self.make_features: Callable[[int], FeatureRows] | None = None
        self.bound_width = 0
        """The current values of the binding, here and below."""
        self.bound_rows = -1
        self.bound_place = 0
        self.bound_adapter: object = None
        self.bound_chain = False
        self.bound_parents: object = None

    def keep(self, path: Sequence[int]) -> None:
        if self.recurrence is None:
            super().keep(path)
            return
        self.recurrence.check_kept(len(path))
        pending = self._pending
        super().keep(path)
        if pending:
            self.recurrence.keep(path)

    def crop(self, length: int) -> None:
        if self.recurrence is not None:
            check_crop(length, settled=self._length)
            with self._busy:
                length = self.recurrence.crop(length, settled=self._length, pending=self._pending)
        super().crop(length)

    def keep_features(self) -> "FeatureRows":
        with self._busy:
            if self.features is None:
                assert self.make_features is not None
                self.features = self.make_features(self._length)
            return self.features

    def _drop(self) -> None:
        super()._drop()
        self.bound_adapter = None  # the binding, which has its matrices too, is gone
        self.cache.close()
        if self.recurrence is not None:
            self.recurrence.close()
        if self.features is not None:
            self.features.close()

    def _gather(self, path: Sequence[int]) -> None:
        with self._busy:  # a device may be running another state's pass
            self.cache.move([self._length + row for row in path], start=self._length)
            if self.features is not None:
                self.features.gather(path, length=self._length)

    def _settle(self, length: int) -> None:
        super()._settle(length)
        if self.features is not None:
            self.features.settle(length)
