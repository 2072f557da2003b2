"""Drafting that overlaps verification, where draft and target run on separate devices.

While the target verifies k drafts, the draft model drafts on after the outcomes of that pass that it considers likely:
all drafts accepted and its own next token as the bonus token (PEARL's post-verify, arXiv 2408.11850), or its second
choice in place of a rejected draft (several branches at once, as in Mirror-SD, arXiv 2510.13161). If the outcome is one
of them, the next round's drafts are ready when the pass ends; else they are thrown away and drafted anew.

Exactness: nothing is emitted that the target did not verify. Which branches are prepared depends only on the draft
model's own rows, never on the target's noise, and a prepared branch is drawn with the same noise, by position, as it
would be drawn after the pass. So the drafts are the same as without overlap; only the time at which they are ready
differs, and the rule that verifies them, its distributions included, is untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedecode.decoding.policy import RoundCost

from .cost import STEADY, CostTable, Recent

__all__ = [
    "CAUTION",
    "MOST_GUESSES",
    "WORTH",
    "OverlapPlan",
    "Slowdown",
    "TwoDevices",
    "best_overlap",
    "chain_overlap",
    "outcome_chances",
]

MOST_GUESSES = 8
"""Most outcomes that are prepared for: a row each of a draft step. Higher: fewer rounds wait, wider draft steps."""
WORTH = 1.05
"""Predicted gain over rounds without overlap from which it is used. Lower: losses where the prediction is too high."""
CAUTION = 0.2
"""Standard deviations below the expected acceptance that overlap with verification assumes: it must never lose. Higher:
used less, and later in an answer."""


@dataclass(frozen=True, slots=True)
class TwoDevices:
    """Costs in baseline steps, a target pass over one token. passes: of a target pass by its rows.

    step: a draft step. branch: each further row of a draft step, as a share of a step. separate: whether the draft's
    device shares neither cores nor memory bandwidth with the target's; else what one gains the other loses. slowdown:
    factor by which a target pass takes longer while the draft model runs, as measured.
    """

    passes: Callable[[int], float]
    step: float
    branch: float = 0.05
    separate: bool = True
    slowdown: float = 1.0

    def prepared(self, length: int, guesses: int) -> float:
        """Return the time to draft `length` tokens after each of these guesses; the first one takes a step itself."""
        return (length + 1) * self.step * (1 + self.branch * (guesses - 1))


@dataclass(frozen=True, slots=True)
class OverlapPlan:
    """Rounds of `length` drafts that prepare for the `guesses` likeliest outcomes; 0 guesses: no overlap.

    speed: expected tokens per baseline step.
    """

    length: int
    guesses: int
    speed: float


def outcome_chances(alive: Sequence[float], length: int, second: float) -> list[float]:
    """Return the chances of the outcomes that can be prepared for, likeliest first.

    alive: for each position, the chance that the drafts up to it are accepted, `length` + 1 of them. second: the chance
    that the token in place of a rejected draft is the draft model's second choice.
    """
    reached = [1.0, *alive]
    chances = [alive[length]]
    chances += [(reached[index] - reached[index + 1]) * second for index in range(length + 1)]
    return sorted(chances, reverse=True)


def best_overlap(
    devices: TwoDevices, alive: Sequence[float], *, second: float = 0.0, most: int = MOST_GUESSES
) -> OverlapPlan:
    """Return the fastest plan; without overlap unless it is clearly faster, and always on shared cores.

    alive, second: as in `outcome_chances`; the longest draft has one token less than `alive` has entries. most: of the
    guesses.
    """
    longest = len(alive) - 1
    plain = max((_plan(devices, alive, length, 0, ()) for length in range(1, longest + 1)), key=_speed)
    if not devices.separate:
        return plain
    found = [
        _plan(devices, alive, length, guesses, outcome_chances(alive, length, second))
        for length in range(1, longest + 1)
        for guesses in range(1, min(most, length + 2) + 1)
    ]
    best = max(found, key=_speed)
    return best if best.speed >= WORTH * plain.speed else plain


def chain_overlap(devices: TwoDevices, alive: Sequence[float]) -> OverlapPlan | None:
    """Return the fastest plan that prepares for one outcome, all drafts accepted; None if overlap is not faster.

    A draft model's state that holds one chain can prepare for no other.
    """
    plan = best_overlap(devices, alive, most=1) if len(alive) > 1 else None
    return plan if plan is not None and plan.guesses else None


class Slowdown:
    """Learns by how much the target's passes are slower while the draft model runs: more than 1 on shared resources.

    Passes beside which it ran are then too slow to overlap, whatever the placement says of the devices.
    """

    __slots__ = ("_measured",)

    def __init__(self) -> None:
        self._measured = Recent(most=STEADY)

    def __call__(self) -> float:
        """Return the factor."""
        return max(1.0, self._measured.value or 1.0)

    def observe(self, cost: RoundCost, table: CostTable) -> None:
        """Learn from a round, if drafting ran beside its pass."""
        if cost.ahead and table.step is not None:
            self._measured.observe(cost.pass_seconds / (table.step * table.c(cost.width)))


def _plan(
    devices: TwoDevices, alive: Sequence[float], length: int, guesses: int, chances: Sequence[float]
) -> OverlapPlan:
    tokens = 1 + sum(alive[:length])
    verifying, drafting = devices.passes(length + 1), length * devices.step
    if not guesses:
        return OverlapPlan(length, 0, tokens / (verifying + drafting))
    verifying *= devices.slowdown
    hit, prepared = sum(chances[:guesses]), devices.prepared(length, guesses)
    unfinished = 0.0 if prepared <= verifying else devices.step / 2  # the step under way when the pass ends
    cost = hit * max(verifying, prepared) + (1 - hit) * (verifying + unfinished + drafting)
    return OverlapPlan(length, guesses, tokens / cost)


def _speed(plan: OverlapPlan) -> float:
    return plan.speed
