"""A block drafter's KV cache in one session: one pass computes all rows of a draft (DFlash, 2602.06036; DSpark)."""

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import BlockHead, FeatureState
from edgedecode.decoding.policy import Plan

from .head_state import CHUNK, ReadingState


class BlockState(ReadingState):
    """The KV cache: a row for each position whose features were read. A block's rows are dropped after its pass."""

    def __init__(self, head: BlockHead, target: FeatureState, *, capacity: int) -> None:
        super().__init__(head, target, capacity=capacity)
        self._block = head
        self._rows: FloatArray = np.empty((0, 0), np.float32)
        """Those of a block's logits that were not returned yet."""

    def reach(self, context: Sequence[int], limit: int, plan: Plan) -> int:
        self.at_once = max(0, min(super().reach(context, limit, plan), self._block.longest))
        return self.at_once

    def catch_up(self, context: Sequence[int]) -> FloatArray:
        first, last = self._start - 1 + len(self._read), len(context) - 1
        while True:
            stop = min(first + CHUNK, last)
            count, features = self.at_once if stop == last else 0, self._features.rows(first, stop)
            self._rows = self._block.draft_block(context[last], self._state, features=features, count=count)
            self._settle(context[first + 1 : stop + 1])
            self._settled, first = len(self._read), stop
            if stop == last:
                return self.follow(context[last:])

    def follow(self, tokens: Sequence[int]) -> FloatArray:
        """Return the logits after a token of the draft, or the one before it: a view."""
        row: FloatArray = self._rows[0]
        self._rows = self._rows[1:]
        self._block.link(row, tokens[-1])
        return row
