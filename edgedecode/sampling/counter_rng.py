"""Counter-based noise: one number per (key, id), independent of the order of requests (splitmix64, Steele 2014).

Every step is an integer operation or a single IEEE operation in a fixed order, so native code gives the same bits.
"""

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import IntArray

_Doubles = npt.NDArray[np.float64]

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_STEP_64, _FIRST_64, _SECOND_64 = np.uint64(_STEP), np.uint64(_FIRST), np.uint64(_SECOND)
_30, _27, _31, _12 = (np.uint64(bits) for bits in (30, 27, 31, 12))
_PIECE = 8192
"""Ids per step. Pieces of this size stay in the CPU cache, which takes a quarter of the time at 152,000 ids."""
_MARGIN = 1 + 2.0**-40
"""Far above the rounding errors of the logarithm and the divisions."""


def mixed(value: int) -> int:
    """Return splitmix64's 64-bit output for the state `value`."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def first_uniform(key: int) -> float:
    """Return a uniform from output 0 of a generator seeded with `key`, which no id uses: a coin of the position.

    A draft's row and the target's row of one position have the same key, so the same coin, whatever was drafted.
    """
    return float(_uniforms(_hashes(key, np.array([-1])))[0])


def exponentials(key: int, ids: IntArray) -> _Doubles:
    """Return an exponential of mean 1 for each id, from output id + 1 of a generator seeded with `key`."""
    return np.negative(logarithm(_uniforms(_hashes(key, ids))))


def first_arrivals(key: int, ids: IntArray | None, rates: npt.NDArray[np.floating], *, count: int = 1) -> list[int]:
    """Return the indices of the first `count` arrivals, in order, where id i takes exponential(i) / rate(i).

    The first is a sample from the distribution proportional to `rates` (the arg-max of log rate + Gumbel noise); all
    together are samples without replacement. Among equal arrivals the smaller index comes first. ids: None uses the
    indices. rates: positive, of any sum.
    """
    nearest, times = np.empty(0, np.int64), np.empty(0)
    for start in range(0, len(rates), _PIECE):
        piece = rates[start : start + _PIECE].astype(np.float64)
        known = np.arange(start, start + len(piece)) if ids is None else ids[start : start + _PIECE]
        limit = times[-1] if len(times) == count else np.inf
        near, arrived = _arrivals(key, known, piece, count=count, limit=limit)
        if len(near):
            nearest, times = np.concatenate((nearest, start + near)), np.concatenate((times, arrived))
            first = np.argsort(times, kind="stable")[:count]
            nearest, times = nearest[first], times[first]
    found: list[int] = nearest.tolist()
    return found


def _arrivals(key: int, ids: IntArray, rates: _Doubles, *, count: int, limit: float) -> tuple[IntArray, _Doubles]:
    """Return the indices, ascending, and times of a superset of the first `count` arrivals that come by `limit`."""
    bounds = _uniforms(~_hashes(key, ids))  # 1 - u is a lower bound on the exponential, -log u, and much cheaper
    bounds /= rates
    if count < len(ids):
        lowest = np.argpartition(bounds, count - 1)[:count] if count > 1 else np.array([bounds.argmin()])
        if bounds[lowest].min() > limit * _MARGIN:
            return lowest[:0], bounds[:0]
        limit = min(limit, float((exponentials(key, ids[lowest]) / rates[lowest]).max()))
    near = np.flatnonzero(bounds <= limit * _MARGIN)
    return near, exponentials(key, ids[near]) / rates[near]


def _hashes(key: int, ids: IntArray) -> npt.NDArray[np.uint64]:
    state = ids.astype(np.uint64)
    state *= _STEP_64
    state += np.uint64((key + _STEP) & _MASK)
    state ^= state >> _30
    state *= _FIRST_64
    state ^= state >> _27
    state *= _SECOND_64
    state ^= state >> _31
    return state


def _uniforms(hashes: npt.NDArray[np.uint64]) -> _Doubles:
    """Return the hashes over 2**64, as odd multiples of 2**-53: never 0 or 1, and exactly 1 - u for ~hash."""
    uniforms = (hashes >> _12).astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-52
    return uniforms


def logarithm(x: _Doubles) -> _Doubles:
    """Return ln x for x in (0, 1], after e_log.c of FreeBSD's msun (Sun Microsystems, 1993), to less than one ulp.

    The bits are the same on every machine, unlike those of `np.log`.
    """
    m, exponents = np.frexp(x)
    low = m < 0.70710678118654752440
    m = np.where(low, m + m, m)
    k = (exponents - low).astype(np.float64)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    r = even + odd
    half = 0.5 * f * f
    result: _Doubles = k * 6.93147180369123816490e-01 - ((half - (s * (half + r) + k * 1.90821492927058770002e-10)) - f)
    return result
