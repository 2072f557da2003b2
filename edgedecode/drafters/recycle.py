"""Drafts from recycled logits: after every token, the ids that once were likeliest there (2408.08696).

A table of the vocabulary's size learns from rows that the target computed anyway, rejected ones too. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import finalize

import numpy as np
import numpy.typing as npt

from edgedecode.memory import Lease
from edgedecode.protocols import Drafter, DraftSetting, UniformSource
from edgedecode.types import EMPTY_DRAFT, WHOLE, Draft, Plan
from edgedecode.verify import Verdict

__all__ = ["BREADTH", "RecycleDrafter", "RecycleSource"]

BREADTH = 8
"""Followers kept per id."""
ROW_BUDGET = 32768
"""Logits looked at per round, at least one row: a row of 8,000 takes some 20 µs, one of 152,000 some 60."""
DEEPEST = 3
"""The last of these depths' hit rates are also those of all deeper ones."""
LEAST = 0.1
"""A chain ends where the chance of all of it is below this."""
_PRIOR = 0.5
_PRIOR_WEIGHT = 4.0
_FADE = 0.98


class RecycleSource:
    """Opens recycling drafters; needs no model."""

    name = "recycle"
    needs_model = False

    def open(self, setting: DraftSetting) -> Drafter:
        nbytes = setting.vocabulary_size * BREADTH * np.dtype(np.int32).itemsize
        lease = setting.budget.reserve("recycled logits", nbytes)
        return RecycleDrafter(lease, vocabulary_size=setting.vocabulary_size, ends=setting.ends)

    def close(self) -> None:
        """Nothing is shared."""


class RecycleDrafter:
    """Chains the likeliest follower of each id; which rank that is, at which depth, is learnt from what was emitted.

    What it knows holds for every context, so another conversation changes nothing.
    """

    name = "recycle"
    free = True

    def __init__(self, lease: Lease, *, vocabulary_size: int, ends: frozenset[int] = frozenset()) -> None:
        self._lease = lease
        finalize(self, lease.release)  # a drafter that is dropped, not closed
        self._ends = ends
        self._rows = max(1, ROW_BUDGET // vocabulary_size)
        self._followers: npt.NDArray[np.int32] = np.full((vocabulary_size, BREADTH), -1, dtype=np.int32)
        """[id, rank] → id, likeliest first; -1: unknown."""
        self._hits = [[0.0] * BREADTH for _ in range(DEEPEST)]
        self._tried = [0.0] * DEEPEST

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def begin(self, context: Sequence[int]) -> None:
        """Nothing contradicts it."""

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        tokens: list[int] = []
        token, alive = context[-1], 1.0
        while len(tokens) < limit:
            rank = self._best_rank(len(tokens))
            alive *= self.rate(len(tokens), rank)
            token = int(self._followers[token, rank])
            if token < 0 or alive < LEAST:
                break
            tokens.append(token)
            if token in self._ends:
                break
        return Draft(tuple(tokens), source=self.name) if tokens else EMPTY_DRAFT

    def rate(self, depth: int, rank: int) -> float:
        """Return how often the follower of this rank was the next token, this deep after a round's beginning."""
        if depth:  # where nothing is known, as at a round's beginning
            depth, prior = min(depth, DEEPEST - 1), self.rate(0, rank)
        else:
            prior = _PRIOR if rank == 0 else 0.0
        return (self._hits[depth][rank] + _PRIOR_WEIGHT * prior) / (self._tried[depth] + _PRIOR_WEIGHT)

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        emitted = verdict.tokens
        before = [context[-len(emitted) - 1], *emitted[:-1]] if len(context) > len(emitted) else list(emitted[:-1])
        after = emitted[len(emitted) - len(before) :]
        for depth, (token, follower) in enumerate(zip(before, after, strict=True)):
            self._score(min(depth, DEEPEST - 1), token, follower)
        self._learn(verdict, before)

    def close(self) -> None:
        self._lease.release()

    def _best_rank(self, depth: int) -> int:
        hits = self._hits[min(depth, DEEPEST - 1)]
        best = hits.index(max(hits))
        return best if hits[best] > hits[0] + _PRIOR_WEIGHT * _PRIOR else 0

    def _score(self, depth: int, token: int, follower: int) -> None:
        """Count which rank told the truth; what was unknown tells nothing."""
        ranked: list[int] = self._followers[token].tolist()
        if ranked[0] < 0:
            return
        hits = self._hits[depth]
        for rank in range(BREADTH):
            hits[rank] *= _FADE
        self._tried[depth] = _FADE * self._tried[depth] + 1
        if follower in ranked:
            hits[ranked.index(follower)] += 1

    def _learn(self, verdict: Verdict, before: Sequence[int]) -> None:
        """Take over as many rows as the budget has: along the emitted path, its last row first, then the others.

        The last row is where the target said something else than was drafted, or where nothing was known.
        """
        inputs = [before[0] if before else -1, *verdict.draft.tokens]
        path = [0, *(node + 1 for node in verdict.path)][: len(verdict.tokens)]
        others = [row for row in range(1, len(inputs)) if row not in path]
        rows = [row for row in (*reversed(path), *others) if inputs[row] >= 0][: self._rows]
        if rows:
            tokens = [inputs[row] for row in rows[::-1]]  # of one id's rows, the first choice is written last
            ranked = verdict.top(BREADTH, rows[::-1])
            self._followers[tokens, : ranked.shape[1]] = ranked
