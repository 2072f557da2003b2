"""The trees a scheduler may choose: per drafter the fastest shape by what its guesses and passes here are worth.

A fold over rates: same rates and costs, same shapes. A shape is thought over when its rates moved, else seldom.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgedecode.cost import CostModel
from edgedecode.tree_shape import ShapedTree, fastest_tree
from edgedecode.types import RankRates

__all__ = ["MARGIN", "TreeArms"]

MARGIN = 1.03
"""A tree must promise this much more than the best chain: it is wide passes and a choice of the best of many."""
_STALE = 16
"""Questions a shape answers before costs, which drift slowly, are looked at again."""


@dataclass(slots=True)
class _Arm:
    rates: RankRates
    tree: ShapedTree | None = None
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

    def best(self, drafter: str, *, costs: CostModel, context_tokens: int, most: int, model: bool) -> ShapedTree:
        """Return the fastest tree of 1 to `most` nodes; its `speed` is the speed-up against plain decoding.

        model: the drafter grows it with a model, a pass a level.
        """
        arm = self._arms[drafter]
        arm.answers += 1
        if arm.tree is None or arm.most != most or arm.answers > _STALE:
            arm.tree, arm.most, arm.answers = _fastest(arm.rates, drafter, costs, context_tokens, most, model), most, 0
        return arm.tree


def _fastest(
    rates: RankRates, drafter: str, costs: CostModel, context_tokens: int, most: int, model: bool
) -> ShapedTree:
    table = costs.table(context_tokens)
    level = costs.d(drafter, context_tokens) if model else 0.0
    host, plain = costs.o(drafter, context_tokens), 1 + costs.o("none", context_tokens)

    def price(nodes: int, levels: int) -> float:
        return (table.c(nodes + 1) + levels * level + host) / plain

    return fastest_tree(rates, price=price, least=1, most=most)
