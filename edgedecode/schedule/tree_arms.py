"""The trees a scheduler may choose: per drafter the fastest shape by what its guesses and passes here are worth.

A fold over rates: same rates and costs, same shapes. Thinking a shape over takes half a millisecond, so it is done
when its rates moved, and not in every round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.decoding.tree import RankRates, RoundPrice, TreeShape, fastest_tree

from .cost import CostModel

__all__ = ["MARGIN", "TreeArms", "TreeChoice"]

MARGIN = 1.03
"""A tree must promise this much more than the best chain: it is wide passes and a choice of the best of many."""
_FRESH, _STALE = 4, 32
"""Questions a shape answers although its rates moved; and before costs, which drift slowly, are looked at again."""


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
    moved: bool = True
    choice: TreeChoice | None = None
    most: int = 0
    answers: int = 0

    def serves(self, most: int) -> bool:
        """Count a question and tell whether the choice still answers it."""
        self.answers += 1
        if self.choice is None or not len(self.choice.shape) <= most <= self.most:
            return False
        return self.answers <= (_FRESH if self.moved else _STALE)


class TreeArms:
    """Rates and shapes by drafter."""

    def __init__(self) -> None:
        self._arms: dict[str, _Arm] = {}

    def __contains__(self, drafter: str) -> bool:
        return drafter in self._arms

    def learn(self, rates: Iterable[tuple[str, RankRates]]) -> None:
        """Take over what moved."""
        for drafter, moved in rates:
            arm = self._arms.setdefault(drafter, _Arm(moved))
            arm.rates, arm.moved = moved, True

    def best(self, drafter: str, *, costs: CostModel, context_tokens: int, most: int, model: bool) -> TreeChoice:
        """Return the fastest tree of 1 to `most` nodes.

        model: the drafter grows it with a model, a pass a level.
        """
        arm = self._arms[drafter]
        if not arm.serves(most) or arm.choice is None:
            price = _price(drafter, costs, context_tokens, model=model)
            arm.choice = _chosen(arm.rates, price, most=most)
            arm.most, arm.answers, arm.moved = most, 0, False
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
    host, plain = costs.o(drafter, context_tokens), 1 + costs.o(NO_DRAFTER, context_tokens)
    return lambda nodes, levels: (table.c(nodes + 1) + levels * level + host) / plain
