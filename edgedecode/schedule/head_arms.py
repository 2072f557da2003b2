"""Which head of a draft model drafts: heads that share one reading are one arm, and differ in cost and reach only.

What one of them reads none of the others reads again, and what one of them drafted mostly tells what another one would
have drafted: no head must draft to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .cost import CostModel, DraftCost

__all__ = ["Variants"]

TURN = 128
"""Rounds of an arm, after which the head that drafted least lately drafts one: costs change, and not all can be told
from what another head drafted."""
FIRST_ROUNDS = 3
"""Rounds of a head whose cost is not known, before heads are compared."""
STAY = 1.01
"""Another head must promise this much more."""


class Variants:
    """Groups of drafters by name, the first of each group naming its arm. Reading costs are shared in a group."""

    def __init__(self, groups: Sequence[Sequence[str]], costs: CostModel) -> None:
        self.arms: Mapping[str, tuple[str, ...]] = {group[0]: tuple(group) for group in groups}
        self._arm = {name: group[0] for group in groups for name in group}
        self._idle = dict.fromkeys(self._arm, 0)
        """Rounds of its arm since a head drafted."""
        several = [name for name in self._arm if len(self._group(name)) > 1]
        self._first = {name: 0 if _step(costs, name) is not None else FIRST_ROUNDS for name in several}
        self._current: dict[str, str] = {}
        for group in self.arms.values():
            _share_reading(costs, group)

    def __contains__(self, name: object) -> bool:
        return name in self._arm

    def arm_of(self, name: str) -> str | None:
        """Return the arm that a drafter belongs to; None: it has no model."""
        return self._arm.get(name)

    def choose(self, arm: str, worth: Callable[[str], float]) -> str:
        """Return the drafter of an arm for this round; `worth` is the speed-up that each promises."""
        names = self.arms[arm]
        if len(names) == 1:
            return names[0]
        if new := next((name for name in names if self._first[name] > 0), None):
            return new
        longest = max(names, key=self._idle.__getitem__)
        if self._idle[longest] >= TURN:
            return longest
        current = self._current.get(arm)
        return max(names, key=lambda name: worth(name) * (STAY if name == current else 1.0))

    def used(self, name: str) -> None:
        """A drafter drafted in a round."""
        self._current[self._arm[name]] = name
        if name in self._first:
            self._first[name] = max(0, self._first[name] - 1)
        for other in self._group(name):
            self._idle[other] += 1
        self._idle[name] = 0

    def d(self, name: str, costs: CostModel, context_tokens: int) -> float:
        """Return the cost of a drafted token, in plain passes; of a head that was never timed that of its arm."""
        known = next((other for other in (name, *self._group(name)) if _step(costs, other) is not None), name)
        return costs.d(known, context_tokens)

    def _group(self, name: str) -> tuple[str, ...]:
        return self.arms[self._arm[name]]


def _step(costs: CostModel, name: str) -> float | None:
    known = costs.drafts.get(name)
    return None if known is None else known.step.seconds


def _share_reading(costs: CostModel, group: Sequence[str]) -> None:
    """Let every head of a group learn the same cost of reading."""
    if len(group) == 1:
        return
    drafts = [costs.drafts.setdefault(name, DraftCost()) for name in group]
    shared = next((draft.read for draft in drafts if draft.read.seconds is not None), drafts[0].read)
    for draft in drafts:
        draft.read = shared
