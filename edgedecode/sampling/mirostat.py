"""Mirostat 2 (Basu, 2007.14966), as llama.cpp has it: a limit of surprise that follows the tokens drawn.

Tokens whose surprise, -log2 p, is above the limit are dropped. After a token whose surprise among the others is s, the
limit falls by rate * (s - target), so that the mean surprise of the text approaches the target.
"""

import math
from collections.abc import Sequence

from .probs import Probs


class SurpriseLimit:
    """The limit along a sequence and the drafted tokens after it, in bits. target, rate: Mirostat's τ and η.

    `show` reports the distribution that a token is drawn from; a token without one leaves the limit as it is.
    """

    __slots__ = ("_limits", "_rate", "_rows", "_target")

    def __init__(self, target: float, rate: float) -> None:
        self._target, self._rate = target, rate
        self.begin()

    def begin(self) -> None:
        """Start a sequence."""
        self._limits = [2 * self._target]
        """After each token of the path; the first one is the sequence's."""
        self._rows: dict[int, Probs] = {}

    def after(self, path: Sequence[int]) -> float:
        """Return the limit after `path`, which in one round continues the paths of earlier calls."""
        for place in range(len(self._limits) - 1, len(path)):
            p = self._rows[place].of(path[place]) if place in self._rows else 0.0
            error = -math.log2(p) - self._target if p > 0 else 0.0
            self._limits.append(self._limits[place] - self._rate * error)
        return self._limits[len(path)]

    def show(self, path: Sequence[int], probs: Probs) -> None:
        """Take the distribution of the token after `path`."""
        del self._limits[len(path) + 1 :]
        self._rows[len(path)] = probs

    def extend(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens to the sequence."""
        self._limits, self._rows = [self.after(tokens)], {}
