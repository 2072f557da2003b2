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

__all__ = ["MOST_GUESSES", "OverlapPlan", "TwoDevices", "best_overlap", "outcome_chances"]

MOST_GUESSES = 8
"""Most outcomes that are prepared for: a row each of a draft step. Higher: fewer rounds wait, wider draft steps."""
WORTH = 1.05
"""Predicted gain over rounds without overlap from which it is used. Lower: losses where the prediction is too high."""


@dataclass(frozen=True, slots=True)
class TwoDevices:
    """Costs in baseline steps, a target pass over one token. passes: of a target pass by its rows.

    step: a draft step. branch: each further row of a draft step, as a share of a step. separate: whether the draft's
    device shares neither cores nor memory bandwidth with the target's; else what one gains the other loses.
    """

    passes: Callable[[int], float]
    step: float
    branch: float = 0.05
    separate: bool = True

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


def best_overlap(devices: TwoDevices, alive: Sequence[float], *, second: float) -> OverlapPlan:
    """Return the fastest plan; without overlap unless it is clearly faster, and always on shared cores.

    alive: as in `outcome_chances`; the longest draft has one token less than it has entries.
    """
    longest = len(alive) - 1
    plain = max((_plan(devices, alive, length, 0, ()) for length in range(1, longest + 1)), key=_speed)
    if not devices.separate:
        return plain
    found = [
        _plan(devices, alive, length, guesses, outcome_chances(alive, length, second))
        for length in range(1, longest + 1)
        for guesses in range(1, min(MOST_GUESSES, length + 2) + 1)
    ]
    best = max(found, key=_speed)
    return best if best.speed >= WORTH * plain.speed else plain


def _plan(
    devices: TwoDevices, alive: Sequence[float], length: int, guesses: int, chances: Sequence[float]
) -> OverlapPlan:
    tokens = 1 + sum(alive[:length])
    verifying, drafting = devices.passes(length + 1), length * devices.step
    if not guesses:
        return OverlapPlan(length, 0, tokens / (verifying + drafting))
    hit, prepared = sum(chances[:guesses]), devices.prepared(length, guesses)
    unfinished = 0.0 if prepared <= verifying else devices.step / 2  # the step under way when the pass ends
    cost = hit * max(verifying, prepared) + (1 - hit) * (verifying + unfinished + drafting)
    return OverlapPlan(length, guesses, tokens / cost)


def _speed(plan: OverlapPlan) -> float:
    return plan.speed
