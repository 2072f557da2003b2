"""Estimates the chance that a draft model's token is accepted, learnt online from its drafts, to decide when to stop.

A logistic regression over three features (in the spirit of SpecDec++, 2405.19715, without its trained head).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from edgedecode.sampling.row_draw import Leading

_RATE, _LEAST_RATE = 0.2, 0.02
"""Learning rate: the first, and the lowest that it decays to, which is above 0 to follow a changing text."""
_LARGEST = 6.0
"""Features are clipped here: a logit of 6 is a chance of 0.9975."""


class Features(NamedTuple):
    """Features of a drafted token: its probability as a logit, its margin to the second, its position from 1 on."""

    logit: float
    margin: float
    position: float


def features(leading: Leading, position: int) -> Features:
    """Return the features of the likeliest token of a row of logits (without padding) at this position of the draft."""
    others = leading.others
    logit = _LARGEST if others <= 0 else min(max(-math.log(others), -_LARGEST), _LARGEST)
    return Features(logit, min(leading.margin, _LARGEST), min(position, _LARGEST))


class Confidence:
    """The regression. Its initial weights trust the draft model: a token's chance of acceptance is its probability."""

    def __init__(self) -> None:
        self.weights = [1.0, 0.0, 0.0]
        self._judged = 0

    def chance(self, seen: Features) -> float:
        """Return the chance that a token with these features is accepted, given that those before it are."""
        (logit, margin, position), weights = seen, self.weights
        # Not `sum`, whose last bit depends on Python's version.
        return 1.0 / (1.0 + math.exp(-(weights[0] * logit + weights[1] * margin + weights[2] * position)))

    def learn(self, seen: Sequence[Features], accepted: int) -> None:
        """Take a step for each token up to the first rejected one; later ones were not judged."""
        for index, token in enumerate(seen[: accepted + 1]):
            error = float(index < accepted) - self.chance(token)
            rate = max(_LEAST_RATE, _RATE / math.sqrt(1 + self._judged / 16))
            self._judged += 1
            for place, value in enumerate(token):
                self.weights[place] += rate * error * value / _LARGEST
