"""Learns what a draft model costs: its steps and its prefill, in baseline steps."""

from typing import NamedTuple

from edgedecode.decoding.policy import RoundCost

from .cost_table import ENOUGH
from .medians import STEADY, Recent


class _Guess(NamedTuple):
    """Costs before they are measured: in baseline steps, and what does not depend on the target in seconds."""

    step: float = 0.15
    read: float = 0.02
    host: float = 0.01
    step_seconds: float = 60e-6
    """Of a draft model's step besides: as measured with 1.4M parameters, whose products take a fifth of that."""
    draft_seconds: float = 300e-6
    """Of a round with a draft besides the host overhead of one that was asked for nothing, as measured in answers of a
    new process."""


GUESS = _Guess()


class DraftCost:
    """Costs of a draft model in baseline steps: of a step, and of the prefill per token."""

    __slots__ = ("read", "step")

    def __init__(self, step: float | None = None, read: float | None = None) -> None:
        self.step, self.read = Recent(step, most=STEADY), Recent(read, most=STEADY)

    def observe(self, cost: RoundCost, *, plain_step: float) -> None:
        """Learn from one round's drafting: `drafted` tokens after a prefill of `read` tokens."""
        spent = cost.draft_seconds / plain_step
        if cost.read <= 2:  # included in the first step
            self.step.observe(spent / cost.steps)
            return
        if cost.read <= ENOUGH:  # too few to distinguish the prefill from the steps' noise
            return
        if self.step.value is None:  # until a round without prefill separates the two
            self.step.observe(spent / (cost.steps + (cost.read - 1) * GUESS.read / GUESS.step))
        assert self.step.value is not None
        self.read.observe(max(0.0, spent - cost.steps * self.step.value) / (cost.read - 1))
