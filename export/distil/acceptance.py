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
    """Counts over the positions of answers where a draft may begin."""

    begun: int = 0
    reached: list[int] = field(default_factory=lambda: [0] * MOST_DEPTH)
    """Drafts whose first 1, 2, ... tokens are all the target's likeliest."""

    @property
    def shares(self) -> list[float]:
        """The share of the drafts accepted so far whose next token is accepted too, by depth."""
        before = [self.begun, *self.reached]
        return [count / max(1, earlier) for count, earlier in zip(self.reached, before, strict=False)]

    def length(self, draft: int = MOST_DEPTH) -> float:
        """Return the tokens of a round with drafts of this length: those accepted, and the target's own."""
        return 1 + sum(self.reached[:draft]) / max(1, self.begun)

    def add(self, other: "Acceptance") -> None:
        self.begun += other.begun
        self.reached = [one + more for one, more in zip(self.reached, other.reached, strict=True)]


def measure(network: Network, table: Tensor, batches: Batches, texts: Mapping[int, str]) -> dict[str, Acceptance]:
    """Return the acceptance by kind. texts: the held-out texts' indices, and each one's kind."""
    found: dict[str, Acceptance] = {}
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for group in batches.epoch(list(texts), seed=0):
            batch = batches.batch(group)
            outputs = network.outputs(batch, table, depth=MOST_DEPTH)
            alive = batch.answered.clone()
            by_text = [Acceptance(begun=int(count)) for count in alive.sum(1)]
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
                for each, count in zip(by_text, alive.sum(1), strict=True):
                    each.reached[depth] = int(count)
            for index, each in zip(group, by_text, strict=True):
                found.setdefault(texts[index], Acceptance()).add(each)
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
