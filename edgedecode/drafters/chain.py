"""A chain of drafted tokens while a draft model makes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedecode.decoding.policy import Plan
from edgedecode.sampling.probs import Probs

from .confidence import Features


@dataclass(slots=True)
class Guess:
    """The last proposal, including the token dropped for low confidence, until the emitted tokens are known."""

    at: int = -1
    tokens: list[int] = field(default_factory=list)
    seen: list[Features] = field(default_factory=list)

    @classmethod
    def under(cls, plan: Plan, at: int) -> Guess:
        """Return that of a proposal at this position; it counts only if the plan lets confidence end the proposal."""
        return cls(at if plan.floor > 0 else -1)


@dataclass(slots=True)
class Chain:
    """A draft as it grows. The model has read everything before its last token, and not that one.

    at: position of its first token. alive: chance that it is accepted. stopped: a token was dropped for low confidence,
    and the model has read the last one.
    """

    at: int
    guess: Guess
    tokens: list[int] = field(default_factory=list)
    probs: list[Probs] = field(default_factory=list)
    alive: float = 1.0
    stopped: bool = False
