"""Entropy of a row of logits, in nats, and its moving mean. Decides nothing."""

from __future__ import annotations

from collections import deque

import numpy as np

from edgedecode.decoding.arrays import FloatArray

__all__ = ["EntropyWindow", "entropy_nats"]


def entropy_nats(logits: FloatArray) -> float:
    """Return H = -Σ p ln p of softmax(logits), [vocabulary], before any temperature (EAD, 2502.06833, in nats)."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    weights = np.exp(shifted)
    total = weights.sum()
    return float(np.log(total) - (weights @ np.where(weights > 0, shifted, 0.0)) / total)


class EntropyWindow:
    """Mean entropy over the last `size` tokens."""

    def __init__(self, size: int = 5) -> None:
        if size < 1:
            raise ValueError(f"a window of {size} tokens")
        self._values: deque[float] = deque(maxlen=size)

    def push(self, value: float) -> float:
        """Add one token's entropy in nats and return the mean over the window."""
        self._values.append(value)
        return sum(self._values) / len(self._values)

    @property
    def full(self) -> bool:
        return len(self._values) == self._values.maxlen

    def clear(self) -> None:
        self._values.clear()
