"""A sparse distribution over token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


@runtime_checkable
class UniformSource(Protocol):
    """A stream of uniforms in [0, 1)."""

    def random(self) -> float: ...


class NoiseSource(UniformSource, Protocol):
    """A stream of uniforms that also has noise per id; each token takes one position."""

    def take(self) -> int:
        """Return the key of the current position's noise per id, and advance."""


class SharedNoise(Protocol):
    """The noise of a stream as a function of the position; reading it does not advance the stream."""

    def key_at(self, position: int) -> int:
        """Return the key of this position's noise per id, for `Sampler.draw`."""

    def ranked_at(self, probs: Probs, position: int, *, count: int) -> list[int]:
        """Return the first `count` tokens that this position's noise samples from `probs` without replacement."""


@dataclass(frozen=True, slots=True, eq=False)
class Probs:
    """Probabilities of the token ids in the support, which is sorted; every other id has probability 0.

    ids: int64 [n], ascending. p: float64 [n], positive, summing to 1.
    The order by id, not by probability, keeps inverse-CDF sampling stable when two logits nearly tie.
    """

    ids: npt.NDArray[np.int64]
    p: npt.NDArray[np.float64]

    @classmethod
    def point(cls, token: int) -> Probs:
        """Return a distribution with all mass on one token."""
        return cls(np.array([token], dtype=np.int64), _ONE)

    @classmethod
    def dense(cls, p: npt.NDArray[np.float64]) -> Probs:
        """Return the distribution over the indices of `p`, which need not be normalised but must have mass."""
        ids = np.flatnonzero(p > 0)
        shares = p[ids] / p[ids].sum()
        positive = shares > 0  # the division may underflow to 0
        return cls(ids, shares) if positive.all() else cls(ids[positive], shares[positive])

    def draw(self, uniform: float) -> int:
        """Sample a token by inverse CDF from one uniform in [0, 1)."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        index = int(np.searchsorted(np.cumsum(self.p), uniform, side="right"))
        return int(self.ids[min(index, len(self.ids) - 1)])

    def of(self, token: int) -> float:
        """Return the probability of one token."""
        index = int(np.searchsorted(self.ids, token))
        return float(self.p[index]) if index < len(self.ids) and self.ids[index] == token else 0.0

    def argmax(self) -> int:
        """Return the likeliest token, the smallest id on a tie."""
        return int(self.ids[int(self.p.argmax())])

    def minus(self, other: Probs) -> Probs | None:
        """Return norm(max(self - other, 0)), the residual distribution after a rejection; None if it has no mass."""
        p = self.p.copy()
        places = np.searchsorted(self.ids, other.ids)
        inside = places < len(self.ids)
        inside[inside] = self.ids[places[inside]] == other.ids[inside]
        p[places[inside]] -= other.p[inside]
        keep = p > 0
        mass = p[keep].sum()
        return Probs(self.ids[keep], p[keep] / mass) if mass > 0 else None


_ONE = np.ones(1)
