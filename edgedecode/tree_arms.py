"""The trees a scheduler may choose: per drafter the fastest shape by what its guesses and passes here are worth.

A fold over rates: same rates and costs, same shapes. A shape is thought over when its rates moved, else seldom.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgedecode.cost import CostModel
from edgedecode.tree_shape import RoundPrice, fastest_tree
from edgedecode.types import RankRates, TreeShape

__all__ = ["MARGIN", "TreeArms", "TreeChoice"]

MARGIN = 1.03
"""A tree must promise this much more than the best chain: it is wide passes and a choice of the best of many."""
_STALE = 16
"""Questions a shape answers before costs, which drift slowly, are looked at again."""


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """The fastest tree, its speed-up against plain decoding, and that over the best chain's of the same guesses."""

    shape: TreeShape
    speed_up: float
    gain: float

    @property
    def proven(self) -> bool:
        """Whether it promises enough more than a chain to be tried beside one."""
        return self.gain > MARGIN


@dataclass(slots=True)
class _Arm:
    rates: RankRates
    choice: TreeChoice | None = None
    most: int = 0
    answers: int = 0


class TreeArms:
    """Rates and shapes by drafter."""

    def __init__(self) -> None:
        self._arms: dict[str, _Arm] = {}

    def __contains__(self, drafter: str) -> bool:
        return drafter in self._arms

    def learn(self, rates: Iterable[tuple[str, RankRates]]) -> None:
        """Take over what moved."""
        for drafter, moved in rates:
            self._arms[drafter] = _Arm(moved)

    def best(self, drafter: str, *, costs: CostModel, context_tokens: int, most: int, model: bool) -> TreeChoice:
        """Return the fastest tree of 1 to `most` nodes.

        model: the drafter grows it with a model, a pass a level.
        """
        arm = self._arms[drafter]
        arm.answers += 1
        if arm.choice is None or arm.most != most or arm.answers > _STALE:
            price = _price(drafter, costs, context_tokens, model=model)
            arm.choice, arm.most, arm.answers = _chosen(arm.rates, price, most=most), most, 0
        return arm.choice


def _chosen(rates: RankRates, price: RoundPrice, *, most: int) -> TreeChoice:
    tree = fastest_tree(rates, price=price, least=1, most=most)
    best = tuple((max(depth),) for depth in rates)  # a chain takes the guess that is most often right
    chain = fastest_tree(best, price=price, least=1, most=most)
    return TreeChoice(tree.shape, tree.speed, tree.speed / chain.speed if chain.speed else 1.0)


def _price(drafter: str, costs: CostModel, context_tokens: int, *, model: bool) -> RoundPrice:
    """Return what a round costs, in plain rounds."""
    table = costs.table(context_tokens)
    level = costs.d(drafter, context_tokens) if model else 0.0
    host, plain = costs.o(drafter, context_tokens), 1 + costs.o("none", context_tokens)
    return lambda nodes, levels: (table.c(nodes + 1) + levels * level + host) / plain
