"""What restricts an answer's tokens, such as a grammar: the loop drafts what it forces and masks what it refuses."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError
from edgedecode.sampling.counter_rng import first_arrivals
from edgedecode.sampling.sampler import Sampler

from .drafts import EMPTY_DRAFT, FORCED, Draft

MOST_FORCED = 16
"""Most forced tokens of a round."""
_FIRST_RANKED = 32
"""Tokens that are ordered at first; all of a large vocabulary take milliseconds."""


class Constraint(Protocol):
    """The state of one answer: which tokens may follow those emitted so far.

    structured: it restricts the form of the whole answer, of which drafts are then single chains.
    """

    structured: bool

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a new answer after a prompt."""

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, as far as there is no choice."""

    def allows(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may come next, counted from the first."""

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        """Return a row of logits with -inf for each token that may not come after `path`; never change the given one.

        path: the tokens of the running round before this row; in one round each path begins with the previous one.
        Raises CapabilityError if no token may come next.
        """

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        """Return whether a token that was drawn from the masked row may come after `path`, as for `masked`."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append the tokens that a round emitted."""


def forced_draft(constraint: Constraint, room: int) -> Draft:
    """Return what is forced next as a draft of at most `room` tokens; all of it will be accepted."""
    return (
        Draft(tuple(constraint.forced()[: max(0, min(room, MOST_FORCED))]), source=FORCED) if room > 0 else EMPTY_DRAFT
    )


def allowed_draft(constraint: Constraint, draft: Draft) -> Draft:
    """Return the part of a draft that the constraint allows; of a tree nothing, since a form follows one path only."""
    if not constraint.structured:
        return draft
    if not len(draft) or draft.parents is not None:
        return EMPTY_DRAFT
    return draft.cut(constraint.allows(draft.tokens))


def next_accepted(
    constraint: Constraint, sampler: Sampler, row: FloatArray, path: Sequence[int], *, key: int, refused: int
) -> int:
    """Return the next token in the order of the noise that the constraint accepts; `refused` was the first.

    Gumbel noise orders tokens as drawn without replacement, so the result is a draw from the accepted ones. If none of
    those is accepted that the sampler leaves, they are masked and the rest is processed again.
    Raises CapabilityError if no token is accepted.
    """
    row, asked = row[: sampler.vocabulary_size].copy(), {refused}
    while (row > -np.inf).any():
        probs = sampler.probs(row, path, key=key)
        ids, p = probs.ids[probs.p > 0], probs.p[probs.p > 0]
        for count in (min(_FIRST_RANKED, len(ids)), len(ids)):
            for token in ids[first_arrivals(key, ids, p, count=count)].tolist():
                if token not in asked and constraint.accepts(token, path):
                    return int(token)
                asked.add(token)
        row[ids] = -np.inf
    raise CapabilityError("the constraint allows no further token of this model's vocabulary")
