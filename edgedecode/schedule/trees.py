"""Chooses each drafter's fastest tree shape by its acceptance rates and the costs of passes.

Deterministic given the rates and costs. Computing a shape takes half a millisecond, so it is recomputed only when they
have had time to change, not in every round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgedecode.decoding.tree import RankRates, RoundPrice, ShapedTree, fastest_tree

from .cost import REFIT


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
        """Store rates that changed."""
        for drafter, moved in rates:
            self._known.setdefault(drafter, _Known(moved)).rates = moved

    def best(self, drafter: str, *, price: RoundPrice, most: int) -> ShapedTree:
        """Return the fastest tree of 1 to `most` nodes. If `price` is in baseline rounds, `speed` is its speed-up."""
        known = self._known[drafter]
        known.rounds += 1
        tree = known.tree
        if tree is None or known.rounds > REFIT or not len(tree.shape) <= most <= known.most:
            tree = fastest_tree(known.rates, price=price, least=1, most=most)
            known.tree, known.most, known.rounds = tree, most, 0
        return tree
