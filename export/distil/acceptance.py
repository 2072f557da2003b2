"""How far drafts agree with the target on texts that were held out, and what that promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
import torch
from torch import Tensor

from .batches import Batches
from .network import Network
from .training import drafted

MOST_DEPTH = 6
"""Longest draft that is looked at."""
_LEAST_MEASURED, _CLEAR = 4, 2
"""Measurements that a trend needs, and the standard errors that its slope is above zero."""


@dataclass(slots=True)
class Acceptance:
    """Counts over the positions of answers where a draft may begin, and over the rounds that begin there.

    A round begins where the last one ended, mostly behind a token that was hard to guess. So rounds of SmolLM2-135M's
    answers have 1.55 tokens with drafts of two, where drafts from every position would promise 1.74.
    """

    begun: int = 0
    reached: list[int] = field(default_factory=lambda: [0] * MOST_DEPTH)
    """Drafts whose first 1, 2, ... tokens are all the target's likeliest."""
    rounds: list[int] = field(default_factory=lambda: [0] * MOST_DEPTH)
    """Rounds with drafts of 1, 2, ... tokens."""
    emitted: list[int] = field(default_factory=lambda: [0] * MOST_DEPTH)
    """Tokens of these rounds."""

    @classmethod
    def of(cls, accepted: Sequence[int]) -> "Acceptance":
        """Return the counts of one answer, given how many tokens of a draft from each position are accepted."""
        made = cls(len(accepted), [sum(each > depth for each in accepted) for depth in range(MOST_DEPTH)])
        for index in range(MOST_DEPTH):
            place = 0
            while place < len(accepted):
                place += 1 + min(accepted[place], index + 1)
                made.rounds[index] += 1
            made.emitted[index] = min(place, len(accepted))  # the answer may end within the last round
        return made

    @property
    def shares(self) -> list[float]:
        """The share of the drafts accepted so far whose next token is accepted too, by depth."""
        before = [self.begun, *self.reached]
        return [count / max(1, earlier) for count, earlier in zip(self.reached, before, strict=False)]

    def length(self, draft: int = MOST_DEPTH) -> float:
        """Return the tokens of a round with drafts of this length: those accepted, and the target's own."""
        rounds = self.rounds[draft - 1]
        return self.emitted[draft - 1] / rounds if rounds else 1.0

    def add(self, other: "Acceptance") -> None:
        self.begun += other.begun
        for name in ("reached", "rounds", "emitted"):
            both = zip(getattr(self, name), getattr(other, name), strict=True)
            setattr(self, name, [one + more for one, more in both])


def measure(network: Network, table: Tensor, batches: Batches, texts: Mapping[int, str]) -> dict[str, Acceptance]:
    """Return the acceptance by kind. texts: the held-out texts' indices, and each one's kind."""
    found: dict[str, Acceptance] = {}
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for group in batches.epoch(list(texts), seed=0):
            batch = batches.batch(group)
            outputs = network.outputs(batch, table, depth=MOST_DEPTH)
            alive = batch.answered.clone()
            accepted = torch.zeros_like(alive, dtype=torch.long)
            for depth, output in zip(
                range(alive.shape[1]), outputs, strict=False
            ):  # a text may be shorter than a draft
                chosen = drafted(batch.answered, depth)
                right = torch.zeros(alive.numel(), dtype=torch.bool)
                guessed = network.lm_head(output.flatten(0, 1)[chosen]).argmax(-1)
                right[chosen] = guessed == batch.rows.flatten(0, 1)[chosen, 0]
                ahead = torch.zeros_like(alive)
                ahead[:, : alive.shape[1] - depth] = right.view_as(alive)[:, depth:]
                alive &= ahead
                accepted += alive
            for index, row, answered in zip(group, accepted, batch.answered, strict=True):
                found.setdefault(texts[index], Acceptance()).add(Acceptance.of(row[answered].tolist()))
    return found


def together(parts: Mapping[str, Acceptance]) -> Acceptance:
    """Return the counts of all kinds."""
    total = Acceptance()
    for part in parts.values():
        total.add(part)
    return total


@dataclass(frozen=True, slots=True)
class Trend:
    """Tokens of a round as a + b · log(tokens read), by least squares over the measurements so far."""

    constant: float
    slope: float

    @classmethod
    def of(cls, measured: Sequence[tuple[int, float]]) -> "Trend | None":
        """Return the trend of (tokens read, tokens of a round); None for too few, or where it is not clear."""
        if len(measured) < _LEAST_MEASURED:
            return None
        logs, lengths = [log(tokens) for tokens, _ in measured], [length for _, length in measured]
        (slope, constant), covariance = np.polyfit(logs, lengths, 1, cov=True)
        return cls(float(constant), float(slope)) if slope > _CLEAR * covariance[0, 0] ** 0.5 else None

    def at(self, tokens: float) -> float:
        return self.constant + self.slope * log(tokens)
