"""What restricts an answer's tokens, such as a grammar: the loop drafts what it forces and masks what it refuses."""

from collections.abc import Sequence
from typing import Protocol

from edgedecode.arrays import FloatArray

from .drafts import EMPTY_DRAFT, FORCED, Draft

MOST_FORCED = 16
"""Most forced tokens of a round."""


class Constraint(Protocol):
    """The state of one answer: which tokens may follow those emitted so far."""

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, as far as there is no choice."""

    def allows(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may come next, counted from the first."""

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        """Return a copy of a row of logits with -inf for each token that may not come after `path`.

        path: the tokens of the running round before this row; in one round each path begins with the previous one.
        Raises CapabilityError if no token may come next.
        """

    def extend(self, tokens: Sequence[int]) -> None:
        """Append the tokens that a round emitted."""


def forced_draft(constraint: Constraint, room: int) -> Draft:
    """Return what is forced next as a draft of at most `room` tokens; all of it will be accepted."""
    return (
        Draft(tuple(constraint.forced()[: max(0, min(room, MOST_FORCED))]), source=FORCED) if room > 0 else EMPTY_DRAFT
    )


def allowed_draft(constraint: Constraint, draft: Draft) -> Draft:
    """Return the part of a draft that the constraint allows; of a tree nothing, since it follows one path only."""
    if not len(draft) or draft.parents is not None:
        return EMPTY_DRAFT
    return draft.cut(constraint.allows(draft.tokens))
