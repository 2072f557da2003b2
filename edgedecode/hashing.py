"""Noise by counter: a number per (key, id), the same wherever it is asked for (splitmix64, Steele 2014)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["exponentials", "mixed"]

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_STEP_64, _FIRST_64, _SECOND_64 = np.uint64(_STEP), np.uint64(_FIRST), np.uint64(_SECOND)
_30, _27, _31, _11 = (np.uint64(bits) for bits in (30, 27, 31, 11))


def mixed(value: int) -> int:
    """Return splitmix64's output for the state `value`, 64 bits."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def exponentials(key: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return an exponential of mean 1 for each id: the (id + 1)st output of a generator that began at `key`."""
    state = ids.astype(np.uint64)
    state *= _STEP_64
    state += np.uint64((key + _STEP) & _MASK)
    state ^= state >> _30
    state *= _FIRST_64
    state ^= state >> _27
    state *= _SECOND_64
    state ^= state >> _31
    state >>= _11
    uniforms = state.astype(np.float64)
    uniforms += 0.5  # in (0, 1): the logarithm is finite and below 0
    uniforms *= 2.0**-53
    result: npt.NDArray[np.float64] = np.negative(np.log(uniforms, out=uniforms), out=uniforms)
    return result
