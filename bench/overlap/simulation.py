"""Simulates rounds on two devices, token by token and step by step, with the noise of a real machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from edgedecode.schedule.overlap import OverlapPlan, TwoDevices

__all__ = ["Text", "simulated_seconds"]

_Timed: TypeAlias = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Text:
    """A text as the draft model sees it. accepted: the chance that its next token is the target's, given that the
    earlier ones were. second: the chance that its second choice is, where the first is not."""

    accepted: float
    second: float

    def ranks(self, rng: random.Random, count: int) -> list[int]:
        """Return for each position the rank of the target's token in the draft model's row: 0, 1, or 2 for lower."""
        return [0 if rng.random() < self.accepted else 1 if rng.random() < self.second else 2 for _ in range(count)]


def simulated_seconds(
    devices: TwoDevices,
    plan: OverlapPlan,
    text: Text,
    *,
    tokens: int,
    seed: int,
    jitter: float = 0.1,
    spikes: float = 0.02,
) -> float:
    """Return the time in baseline steps for this many tokens.

    jitter: relative standard deviation of every pass's and step's time. spikes: share of them that take three times as
    long.
    """
    rng = random.Random(seed)
    ranks = text.ranks(random.Random(seed + 1), tokens + plan.length + 2)

    def timed(cost: float) -> float:
        return cost * math.exp(rng.gauss(0, jitter)) * (3 if rng.random() < spikes else 1)

    now, done, ready = 0.0, 0, False
    while done < tokens:
        if not ready:
            now += sum(timed(devices.step) for _ in range(plan.length))
        verifying = timed(devices.passes(plan.length + 1))
        wrong = next((index for index in range(plan.length) if ranks[done + index]), plan.length)
        outcome = wrong, ranks[done + wrong]
        done += wrong + 1
        ready = outcome in _prepared(plan, text)
        now += _ended(devices, plan, verifying, ready=ready, timed=timed)
    return now


def _ended(devices: TwoDevices, plan: OverlapPlan, verifying: float, *, ready: bool, timed: _Timed) -> float:
    """Return when a round ends, after its pass began: with its pass, or once the prepared drafts are complete."""
    if not plan.guesses:
        return verifying
    spent, step = 0.0, devices.step * (1 + devices.branch * (plan.guesses - 1))
    for _ in range(plan.length + 1):
        if not ready and spent >= verifying:
            break
        spent += timed(step)
    return max(verifying, spent)


def _prepared(plan: OverlapPlan, text: Text) -> set[tuple[int, int]]:
    """Return the outcomes that are prepared for: how many drafts are accepted, and the rank of the token after them."""
    reach = [text.accepted**index for index in range(plan.length + 1)]
    chances = {(plan.length, 0): reach[-1] * text.accepted}
    chances |= {(index, 1): chance * (1 - text.accepted) * text.second for index, chance in enumerate(reach)}
    return set(sorted(chances, key=lambda outcome: -chances[outcome])[: plan.guesses])
