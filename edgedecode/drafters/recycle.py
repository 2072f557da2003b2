"""Drafts from recycled logits: after each token, the ids that the target earlier found likeliest there (2408.08696).

A table with a row per id learns from rows that the target computes anyway, including rejected ones.
"""

from collections.abc import Sequence
from weakref import finalize

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Verdict
from edgedecode.memory.budget import Holder, Lease
from edgedecode.sampling.probs import UniformSource

from .source import DrafterSource, DraftSetting, Scheduled

BREADTH = 8
"""Followers kept per id."""
ROW_BUDGET = 16384
"""Logits processed per round, but at least one row: a row of 8,000 takes some 25 µs, one of 152,000 some 60 µs."""
DEEPEST = 3
"""Depths with separate hit rates; deeper ones share the last."""
LEAST = 0.1
"""A chain ends when the chance that all of it is right falls below this."""
USEFUL = 0.2
"""Hit rate below which drafts do not make up for their row in the target's pass on any machine."""
SELDOM = 8
"""With a lower hit rate the table learns from one round in this many. Higher: less overhead, slower to recover."""
_PRIOR = 0.5
_PRIOR_WEIGHT = 4.0
_FADE = 0.98


def _table_holder(vocabulary_size: int) -> Holder:
    return Holder("recycled logits", vocabulary_size * BREADTH * np.dtype(np.int32).itemsize)


class RecycleSource(DrafterSource):
    """Opens recycling drafters, each with a table of its own: another conversation's could be timed. Needs no model."""

    name = "recycle"
    scheduled = Scheduled.WITHOUT_DRAFT  # with a draft model it gained less than its host overhead

    def open(self, setting: DraftSetting) -> Drafter:
        lease = setting.budget.reserve(*_table_holder(setting.vocabulary_size))
        table = RecycledLogits(setting.vocabulary_size)
        return RecycleDrafter(table, lease, ends=setting.ends)

    def holders(self, *, capacity: int, vocabulary_size: int) -> tuple[Holder, ...]:
        return (_table_holder(vocabulary_size),)


class RecycledLogits:
    """The ids that the target earlier found likeliest after each id, and how often the one of each rank came next."""

    def __init__(self, vocabulary_size: int) -> None:
        self.followers: npt.NDArray[np.int32] = np.full((vocabulary_size, BREADTH), -1, dtype=np.int32)
        """[id, rank] → id, likeliest first; -1: unknown."""
        self._hits = [[0.0] * BREADTH for _ in range(DEEPEST)]
        self._tried = [0.0] * DEEPEST

    def forget(self) -> None:
        """Forget the ids; the hit rates of ranks stay, which tell nothing of a text."""
        self.followers.fill(-1)

    def rate(self, depth: int, rank: int) -> float:
        """Return how often the follower of this rank was the next token, at this depth from the start of a round."""
        if depth:  # the prior is the rate at the start of a round
            depth, prior = min(depth, DEEPEST - 1), self.rate(0, rank)
        else:
            prior = _PRIOR if rank == 0 else 0.0
        return (self._hits[depth][rank] + _PRIOR_WEIGHT * prior) / (self._tried[depth] + _PRIOR_WEIGHT)

    def best_rank(self, depth: int) -> int:
        """Return the rank that is most often right at this depth."""
        hits = self._hits[min(depth, DEEPEST - 1)]
        best = hits.index(max(hits))
        return best if hits[best] > hits[0] + _PRIOR_WEIGHT * _PRIOR else 0

    def score(self, depth: int, token: int, follower: int) -> None:
        """Count which rank was right. Tokens without known followers are skipped."""
        ranked: list[int] = self.followers[token].tolist()
        if ranked[0] < 0:
            return
        depth = min(depth, DEEPEST - 1)
        self._hits[depth] = hits = [_FADE * count for count in self._hits[depth]]
        self._tried[depth] = _FADE * self._tried[depth] + 1
        if follower in ranked:
            hits[ranked.index(follower)] += 1

    def learn(self, token: int, ranked: IntArray) -> None:
        """Store the likeliest ids after a token."""
        self.followers[token, : len(ranked)] = ranked


class RecycleDrafter(Drafter):
    """Chains likely followers of ids. The best rank at each depth is learnt from the emitted tokens.

    The table is forgotten with the conversation. While hits are rare it learns
    from one round in `SELDOM`, which is enough to notice a better text.
    """

    name = "recycle"
    free = True

    def __init__(self, table: RecycledLogits, lease: Lease, *, ends: frozenset[int] = frozenset()) -> None:
        self._table, self._lease = table, lease
        self._context: Sequence[int] = ()
        finalize(self, lease.release)  # for a drafter that is dropped without being closed
        self._ends = ends
        self._rows = max(1, ROW_BUDGET // len(table.followers))
        self._rounds = 0

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def begin(self, context: Sequence[int]) -> None:
        if context[: len(self._context)] != self._context:
            self._table.forget()
        self._context = context

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        tokens: list[int] = []
        table, token, alive = self._table, context[-1], 1.0
        while len(tokens) < limit:
            rank = table.best_rank(len(tokens))
            alive *= table.rate(len(tokens), rank)
            token = int(table.followers[token, rank])
            if token < 0 or alive < LEAST:
                break
            tokens.append(token)
            if token in self._ends:
                break
        return Draft(tuple(tokens), source=self.name) if tokens else EMPTY_DRAFT

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        self._rounds += 1
        if self._rounds % SELDOM and self._table.rate(0, self._table.best_rank(0)) < USEFUL:
            return
        emitted = verdict.tokens
        before = [*context[-len(emitted) - 1 : -len(emitted)], *emitted[:-1]]
        for depth, (token, follower) in enumerate(zip(before, emitted[-len(before) :], strict=True)):
            self._table.score(depth, token, follower)
        self._learn(verdict, before)

    def close(self) -> None:
        self._lease.release()

    def _learn(self, verdict: Verdict, before: Sequence[int]) -> None:
        """Store as many rows as the budget allows: along the emitted path, its last row first, then the others.

        The last row is the most useful one, because its token was not drafted.
        """
        inputs = [before[0], *verdict.draft.tokens]
        path = [0, *(node + 1 for node in verdict.path)][: len(verdict.tokens)]
        others = [row for row in range(1, len(inputs)) if row not in path]
        for row in [*reversed(path), *others][: self._rows][::-1]:  # the preferred of one id's rows is written last
            self._table.learn(inputs[row], verdict.top(BREADTH, row))
