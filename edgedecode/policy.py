"""The fixed policies: the same draft length each round, or trees of as many nodes; no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.errors import InputError
from edgedecode.tree_shape import MOST_NODES, best_tree
from edgedecode.types import Plan, RankRates, Signals, TreeShape

__all__ = ["MAX_DRAFT", "FixedLength", "FixedTree"]

MAX_DRAFT = 64


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the same draft length; 0 is plain decoding. Raises InputError outside 0 to MAX_DRAFT."""

    draft_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 0 (no speculation) to {MAX_DRAFT}")

    def plan(self, signals: Signals) -> Plan:
        return Plan(min(self.draft_max, signals.remaining_tokens - 1), reason="fixed")


class FixedTree:
    """Always a tree of so many nodes, shaped by what guesses are worth. Raises InputError for a number out of range."""

    def __init__(self, nodes: int) -> None:
        if not 1 <= nodes <= MOST_NODES:
            raise InputError(f"a draft tree of {nodes} nodes is out of range: 1 to {MOST_NODES}")
        self._nodes = nodes
        self._known: RankRates | None = None
        self._shape = TreeShape()

    def plan(self, signals: Signals) -> Plan:
        for _, rates in signals.rates:  # there is one drafter
            if rates is not self._known:
                self._known, self._shape = rates, best_tree(rates, nodes=self._nodes)
        shape = self._shape.cut(max(0, signals.remaining_tokens - 1))
        return Plan(len(shape), reason="fixed", shape=shape)
