"""Drafts from recycled logits: after every token, the ids that once were likeliest there (2408.08696).

A table of the vocabulary's size learns from rows that the target computed anyway, rejected ones too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.tree import RankRates, TreeShape, is_chain
from edgedecode.decoding.verify import Verdict
from edgedecode.memory.budget import Lease
from edgedecode.memory.footprint import Holder
from edgedecode.sampling.probs import UniformSource

from .rank_rates import RATES_AFTER, kept_rates
from .source import DraftSetting

__all__ = ["BREADTH", "RecycleDrafter", "RecycleSource", "RecycledLogits"]

BREADTH = 8
"""Followers kept per id."""
ROW_BUDGET = 16384
"""Logits looked at per round, at least one row: one of 8,000 takes some 25 µs, one of 152,000 some 60."""
DEEPEST = 3
"""The last of these depths' hit rates are also those of all deeper ones."""
LEAST = 0.1
"""A chain ends where the chance of all of it is below this."""
USEFUL = 0.2
"""Rarer hits do not pay for a row of the target's pass anywhere."""
SELDOM = 8
_PRIOR = 0.5
_PRIOR_WEIGHT = 4.0
_FADE = 0.98


def _table_holder(vocabulary_size: int) -> Holder:
    return Holder("recycled logits", vocabulary_size * BREADTH * np.dtype(np.int32).itemsize)


class RecycleSource:
    """Opens recycling drafters, which share one table: it is about the target, whoever asked; needs no model."""

    name = "recycle"
    needs_model = False
    needs: Sequence[str] = ()

    def __init__(self) -> None:
        self._table: RecycledLogits | None = None
        self._lease: Lease | None = None

    def open(self, setting: DraftSetting) -> Drafter:
        if self._table is None:
            self._lease = setting.budget.reserve(*_table_holder(setting.vocabulary_size))
            self._table = RecycledLogits(setting.vocabulary_size)
        return RecycleDrafter(self._table, ends=setting.ends, tree=setting.tree)

    def holders(self, *, capacity: int, vocabulary_size: int) -> tuple[Holder, ...]:
        return (_table_holder(vocabulary_size),)

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()
        self._table = self._lease = None


class RecycledLogits:
    """What the target once found likeliest after each id, and how often which rank of it was the next token."""

    def __init__(self, vocabulary_size: int) -> None:
        self.followers: npt.NDArray[np.int32] = np.full((vocabulary_size, BREADTH), -1, dtype=np.int32)
        """[id, rank] → id, likeliest first; -1: unknown."""
        self._hits = [[0.0] * BREADTH for _ in range(DEEPEST)]
        self._tried = [0.0] * DEEPEST
        self._rates: RankRates | None = None
        self._scored = RATES_AFTER

    def rates(self) -> RankRates:
        """Return `rate` by depth and rank; the same object until one of them moved."""
        if self._rates is not None and self._scored < min(RATES_AFTER, 1 + self._tried[0] / 4):
            return self._rates
        self._scored = 0
        rates = tuple(tuple(self.rate(depth, rank) for rank in range(BREADTH)) for depth in range(DEEPEST))
        self._rates = kept_rates(self._rates, rates)
        return self._rates

    def rate(self, depth: int, rank: int) -> float:
        """Return how often the follower of this rank was the next token, this deep after a round's beginning."""
        if depth:  # where nothing is known, as at a round's beginning
            depth, prior = min(depth, DEEPEST - 1), self.rate(0, rank)
        else:
            prior = _PRIOR if rank == 0 else 0.0
        return (self._hits[depth][rank] + _PRIOR_WEIGHT * prior) / (self._tried[depth] + _PRIOR_WEIGHT)

    def best_rank(self, depth: int) -> int:
        """Return the rank that is most often right, this deep."""
        hits = self._hits[min(depth, DEEPEST - 1)]
        best = hits.index(max(hits))
        return best if hits[best] > hits[0] + _PRIOR_WEIGHT * _PRIOR else 0

    def score(self, depth: int, token: int, follower: int) -> None:
        """Count which rank told the truth; what was unknown tells nothing."""
        ranked: list[int] = self.followers[token].tolist()
        if ranked[0] < 0:
            return
        self._scored += 1
        depth = min(depth, DEEPEST - 1)
        self._hits[depth] = hits = [_FADE * count for count in self._hits[depth]]
        self._tried[depth] = _FADE * self._tried[depth] + 1
        if follower in ranked:
            hits[ranked.index(follower)] += 1

    def learn(self, tokens: Sequence[int], ranked: IntArray) -> None:
        """Take over the likeliest ids after each token, [tokens, ranks]; of equal tokens the last one counts."""
        self.followers[tokens, : ranked.shape[1]] = ranked


class RecycleDrafter:
    """Chains the likeliest follower of each id; which rank that is, at which depth, is learnt from what was emitted.

    What it knows holds for every context, so another conversation changes nothing. While its guesses are rarely right
    it looks at one round in `SELDOM` only: that is what it costs to notice a better text.
    tree: it tells what its followers of lower ranks are worth, so that plans may want trees of it.
    """

    name = "recycle"
    free = True

    nbytes = 0  # the table is the source's

    def __init__(self, table: RecycledLogits, *, ends: frozenset[int] = frozenset(), tree: bool = False) -> None:
        self._table = table
        self._tree = tree
        self._ends = ends
        self._rows = max(1, ROW_BUDGET // len(table.followers))
        self._rounds = 0

    def begin(self, context: Sequence[int]) -> None:
        """Nothing contradicts it."""

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        if plan.shape is not None:
            return self._grown(context[-1], plan.shape.cut(limit))
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

    def rates(self) -> RankRates | None:
        return self._table.rates() if self._tree else None

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
        """The table is the source's."""

    def _grown(self, last: int, shape: TreeShape) -> Draft:
        """Give every node of the shape its token; unknown followers are left out with what hangs from them."""
        tokens, parents = list[int](), list[int]()
        place = {-1: -1}
        for node, (parent, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True)):
            if parent not in place:
                continue
            above = last if parent < 0 else tokens[place[parent]]
            token = -1 if parent >= 0 and above in self._ends else int(self._table.followers[above, rank])
            if token >= 0:
                place[node] = len(tokens)
                tokens.append(token)
                parents.append(place[parent])
        if not tokens:
            return EMPTY_DRAFT
        return Draft(tuple(tokens), parents=None if is_chain(parents) else tuple(parents), source=self.name)

    def _learn(self, verdict: Verdict, before: Sequence[int]) -> None:
        """Take over as many rows as the budget has: along the emitted path, its last row first, then the others.

        The last row is where the target said something else than was drafted, or where nothing was known.
        """
        inputs = [before[0], *verdict.draft.tokens]
        path = [0, *(node + 1 for node in verdict.path)][: len(verdict.tokens)]
        others = [row for row in range(1, len(inputs)) if row not in path]
        rows = [*reversed(path), *others][: self._rows][::-1]  # of one id's rows the first choice is written last
        self._table.learn([inputs[row] for row in rows], verdict.top(BREADTH, rows))
