"""A drafting head's KV cache in one session: it reads what the target computed (EAGLE-3, 2503.01840)."""

from collections.abc import Sequence

from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import DraftHead, FeatureState
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.policy import Plan

from .model_state import ModelState

CHUNK = 64
"""Positions that are read at once, as their features are copied."""


class ReadingState(ModelState):
    """The KV cache of a head whose row for a position reads the target's features there.

    The token of row i, `_read[i]`, is that of position `_start` + i, and the row is of the position before. A text
    whose features are gone, or were never kept, as of a prefix that was restored, is left out: guesses are worse then,
    and the text is the same.
    """

    of_head = True

    def __init__(self, head: LanguageModel, target: FeatureState, *, capacity: int) -> None:
        super().__init__(head, capacity=capacity)
        self._target, self._features = target, target.keep_features()
        self._start, self._settled = 1, 0
        """Rows that read features."""

    def agree(self, context: Sequence[int]) -> None:
        self._crop(self._valid(context))

    def unread(self, context: Sequence[int]) -> int:
        valid = self._valid(context)
        read = self._start - 1 + valid if valid else 0
        return max(0, len(context) - 1 - max(read, self._features.oldest))

    def reach(self, context: Sequence[int], limit: int, plan: Plan) -> int:
        """Return how many tokens may be drafted; 0 if the target has not processed all but the last token."""
        self.agree(context)
        last = len(context) - 1
        if self._target.length < last or self._features.oldest >= last:
            return 0
        read = self._start - 1 + len(self._read)
        first = max(self._features.oldest, last - plan.read_max if plan.read_max > 0 else 0)
        if read < first or not self._read or self._is_full(last - self._start + 1):
            self._restart(max(first, last - max(1, self._window // 2) if self._window else 0) + 1)
        return min(limit, self._state.capacity - (last - self._start + 1))

    def _valid(self, context: Sequence[int]) -> int:
        """Return how many rows read the features and tokens of this context."""
        return min(self._matching(context), self._settled)

    def _restart(self, start: int) -> None:
        super()._restart(start)
        self._settled = 0


class HeadState(ReadingState):
    """A head's KV cache, of which each row also reads the next token.

    After the rows with features come those of a draft, which read the head's own output: they are dropped at the next
    draft, accepted or not, and read again with features.
    """

    def __init__(self, head: DraftHead, target: FeatureState, *, capacity: int) -> None:
        super().__init__(head, target, capacity=capacity)
        self._head = head
        self._hidden: FloatArray | None = None

    def catch_up(self, context: Sequence[int]) -> FloatArray:
        last = len(context) - 1
        if self._start - 1 + len(self._read) == last:  # its last row's output is gone
            self._crop(len(self._read) - 1)
        first = self._start - 1 + len(self._read)
        while True:
            stop = min(first + CHUNK, last)
            tokens = context[first + 1 : stop + 1]
            output = self._head.draft(tokens, self._state, features=self._features.rows(first, stop))
            self._settle(tokens)
            self._settled, self._hidden, first = len(self._read), output.hidden, stop
            if stop == last:
                return output.logits

    def follow(self, tokens: Sequence[int]) -> FloatArray:
        """Read a drafted token with the output of the row before; return the logits after it, a view."""
        assert self._hidden is not None
        output = self._head.draft(tokens, self._state, hidden=self._hidden[None])
        self._settle(tokens)
        self._hidden = output.hidden
        return output.logits
