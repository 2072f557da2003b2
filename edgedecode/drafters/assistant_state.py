"""The rows of Gemma 4's assistant in one session: its queries read the target's keys and values, and it has none."""

from collections.abc import Sequence

from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import Assistant, FeatureState
from edgedecode.decoding.model import State
from edgedecode.decoding.policy import MAX_DRAFT, Plan

from .model_state import ModelState


class AssistantState(ModelState):
    """Drafts from the target's last position: nothing is read in advance, and nothing is kept after a draft.

    All rows of a draft have the position of its first one, and read the settled positions before it, as transformers'
    SinglePositionMultiTokenCandidateGenerator does.
    """

    of_head = True

    def __init__(self, model: Assistant, target: FeatureState) -> None:
        super().__init__(model, capacity=MAX_DRAFT + 2)
        self._window = 0
        self._assistant, self._target, self._features = model, target, target.keep_features()
        self._hidden: FloatArray | None = None

    def _new_state(self, capacity: int, *, tree: bool) -> State:
        return self.model.new_state(capacity)

    @property
    def room(self) -> int:
        """Tokens that it can still hold."""
        return self._state.capacity - self._state.pending

    def agree(self, context: Sequence[int]) -> None:
        self._state.crop(0)

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def holds_all(self, length: int) -> bool:
        return True

    def reach(self, context: Sequence[int], limit: int, plan: Plan) -> int:
        """Return how many tokens may be drafted; 0 if the target has not processed all but the last token."""
        last = len(context) - 1
        known = last > 0 and self._target.length >= last and self._features.oldest < last
        return min(limit, MAX_DRAFT) if known else 0

    def catch_up(self, context: Sequence[int]) -> FloatArray:
        last = len(context) - 1
        self._state.crop(0)
        self._assistant.attend(self._state, self._target, length=last)
        return self._read_row(context[-1:], features=self._features.rows(last - 1, last))

    def follow(self, tokens: Sequence[int]) -> FloatArray:
        """Read a drafted token with the output of the row before; return the logits after it, a view."""
        assert self._hidden is not None
        return self._read_row(tokens, hidden=self._hidden[None])

    def _read_row(self, tokens: Sequence[int], **read: FloatArray) -> FloatArray:
        output = self._assistant.draft(tokens, self._state, **read)
        self._hidden = output.hidden
        return output.logits
