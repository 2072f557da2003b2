"""The best shape of a draft tree, from acceptance rates and the costs of passes.

Acceptance is positional, as in Sequoia (2402.12374): the probability of a guess depends on its depth and rank only. The
probability of a node's path is then the product of these, independent of the rest of the tree and at most its parent's.
So the m most probable nodes form a tree, the best of m nodes, and a best-first search finds the optimum that Sequoia's
dynamic programme finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

RankRates: TypeAlias = tuple[tuple[float, ...], ...]
"""[depth][rank] → how often a drafter's guess of this rank (0: the likeliest) is accepted, given that all guesses above
it were; the last depth's rates also apply to deeper levels."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree without its tokens, parents first: node i continues node parents[i] (-1: the context) with the drafter's
    guess of rank ranks[i], 0 being the likeliest."""

    parents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def branches(self) -> bool:
        """Whether it is not a chain."""
        return any(parent != index - 1 for index, parent in enumerate(self.parents))

    def cut(self, nodes: int) -> TreeShape:
        """Return its first `nodes` nodes."""
        return self if nodes >= len(self) else TreeShape(self.parents[:nodes], self.ranks[:nodes])


def chain(length: int) -> tuple[int, ...]:
    """Return the parents of a chain: -1, 0, 1, …"""
    return tuple(range(-1, length - 1))


def is_chain(parents: Sequence[int]) -> bool:
    """Return whether every node continues the one before it."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def check_parents(parents: Sequence[int], *, length: int) -> None:
    """Raise ValueError unless `parents` describes a tree of `length` nodes, parents first."""
    if len(parents) != length:
        raise ValueError(f"{len(parents)} parents for {length} tokens")
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise ValueError(f"node {index} has parent {parent}: parents come before their children, -1 is the root")


def depths(parents: Sequence[int]) -> list[int]:
    """Return each node's depth; children of -1 have depth 0."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of every node, the root's in the last place (so that index -1 finds them)."""
    result: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for index, parent in enumerate(parents):
        result[parent].append(index)
    return result


MOST_NODES = 16
"""Largest draft tree, in nodes; each node is one more row of the target's pass."""
DEEPEST = 8
"""Most levels of a draft tree; each level is one more pass of the drafter's model."""

RoundPrice = Callable[[int, int], float]
"""(nodes, levels) of a draft → the cost of its round, in any unit, non-decreasing in both."""


@dataclass(frozen=True, slots=True)
class ShapedTree:
    """A shape, the expected number of tokens of a round with it, and that number over the cost of the round."""

    shape: TreeShape
    tokens: float
    speed: float


def best_tree(rates: RankRates, *, nodes: int, deepest: int = DEEPEST) -> TreeShape:
    """Return the tree of at most `nodes` nodes and `deepest` levels with the highest expected number of tokens.

    Its first n nodes are the best tree of n. Guesses with a rate of 0 are left out, so it may have fewer nodes.
    """
    parents: list[int] = []
    ranks: list[int] = []
    waiting: list[tuple[float, int, int, int]] = []
    """Heap of -(path probability), depth, parent, rank: among equal probabilities the shallowest comes first."""
    _push_children(waiting, rates, parent=-1, depth=0, chance=1.0)
    while waiting and len(parents) < nodes:
        negative, depth, parent, rank = heappop(waiting)
        parents.append(parent)
        ranks.append(rank)
        if depth + 1 < deepest:
            _push_children(waiting, rates, parent=len(parents) - 1, depth=depth + 1, chance=-negative)
    return TreeShape(tuple(parents), tuple(ranks))


def fastest_tree(
    rates: RankRates, *, price: RoundPrice, least: int = 0, most: int = MOST_NODES, deepest: int = DEEPEST
) -> ShapedTree:
    """Return the tree of `least` to `most` nodes with the most expected tokens over the cost of the round.

    Levels cost extra, so the best tree of every depth is tried. least 0: the result may be no draft.
    """
    best = ShapedTree(TreeShape(), 1.0, 1.0 / price(0, 0) if least == 0 else 0.0)
    for limit in range(1, deepest + 1):
        shape = best_tree(rates, nodes=most, deepest=limit)
        levels, tokens = 0, 1.0
        for count, (depth, chance) in enumerate(zip(depths(shape.parents), path_chances(shape, rates), strict=True), 1):
            levels, tokens = max(levels, depth + 1), tokens + chance
            speed = tokens / price(count, levels)
            if count >= least and speed > best.speed:
                best = ShapedTree(shape.cut(count), tokens, speed)
        if levels < limit:  # a higher limit gives the same tree
            break
    return best


def path_chances(shape: TreeShape, rates: RankRates) -> list[float]:
    """Return, for each node, the probability that it and all nodes above it are accepted."""
    chances: list[float] = []
    for parent, rank, depth in zip(shape.parents, shape.ranks, depths(shape.parents), strict=True):
        above = 1.0 if parent < 0 else chances[parent]
        chances.append(above * _rates_at(rates, depth)[rank])
    return chances


def _rates_at(rates: RankRates, depth: int) -> tuple[float, ...]:
    return rates[min(depth, len(rates) - 1)]


def _push_children(
    waiting: list[tuple[float, int, int, int]], rates: RankRates, *, parent: int, depth: int, chance: float
) -> None:
    for rank, rate in enumerate(_rates_at(rates, depth)):
        if rate > 0:
            heappush(waiting, (-chance * rate, depth, parent, rank))
