"""The trees a scheduler may choose: per drafter the fastest shape by what its guesses and passes here are worth.

A fold over rates: same rates and costs, same shapes. Working out a shape takes half a millisecond, so it is done when
rates and costs had time to move, and not in every round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgedecode.decoding.tree import RankRates, RoundPrice, ShapedTree, fastest_tree

from .cost import REFIT

__all__ = ["Trees"]


@dataclass(slots=True)
class _Known:
    rates: RankRates
    tree: ShapedTree | None = None
    most: int = 0
    rounds: int = 0


class Trees:
    """Rates and shapes by drafter."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __contains__(self, drafter: str) -> bool:
        return drafter in self._known

    def learn(self, rates: Iterable[tuple[str, RankRates]]) -> None:
        """Take over the rates that moved."""
        for drafter, moved in rates:
            self._known.setdefault(drafter, _Known(moved)).rates = moved

    def best(self, drafter: str, *, price: RoundPrice, most: int) -> ShapedTree:
        """Return the fastest tree of 1 to `most` nodes; with a price in plain rounds its `speed` is against those."""
        known = self._known[drafter]
        known.rounds += 1
        tree = known.tree
        if tree is None or known.rounds > REFIT or not len(tree.shape) <= most <= known.most:
            tree = fastest_tree(known.rates, price=price, least=1, most=most)
            known.tree, known.most, known.rounds = tree, most, 0
        return tree
