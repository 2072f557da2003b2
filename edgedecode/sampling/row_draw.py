"""Sampling a token from one row of logits: the interface for a faster helper, and the reference in numpy.

A helper must return the same token for the same row, options and key, with bit-identical intermediate results, so that
using one never changes a text.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray

from .counter_rng import first_arrivals, first_uniform
from .masses import MASS_UNIT, damaged_logits, exponent_scale, largest, total_mass, unnormalised
from .penalties import Marked
from .truncations import unsurprising

if TYPE_CHECKING:
    from .weights import SamplingOptions

MOST_TOP = 64
"""Largest k of `RowDraw.top`."""
SCRATCH_NBYTES = 3 * 8 + 4
"""Per id: processing a row in numpy holds at most three float64 arrays of the vocabulary's size at once, and drafting
with a trimmed draft one float32 row scattered to the full vocabulary."""
_FOLDS = 64
_FOLDED = 16384
"""Rows wider than this are folded before the search: 52 instead of 296 µs at 152,000 logits."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The likeliest element of a row at temperature 1, the first of equal ones."""

    index: int
    others: float
    """The mass of all other elements divided by its own, to 2**-40."""
    margin: float
    """Its logit minus the second largest; infinite in a row of one element."""

    @property
    def probability(self) -> float:
        return 1.0 / (1.0 + self.others)


class RowDraw(Protocol):
    """Samples from rows of logits, float32 [n], without modifying them. For one session; not thread-safe.

    Every method except `top` raises CapabilityError if a logit is NaN; `leading`, and `draw` unless it is greedy, also
    if the largest one is infinite.
    """

    def scratch_nbytes(self, size: int) -> int:
        """Return the bytes it holds to sample from rows of up to `size` elements; the budget is charged for them."""
        ...

    def argmax(self, row: FloatArray) -> int:
        """Return the index of the largest logit, the first of equal ones."""
        ...

    def leading(self, row: FloatArray) -> Leading:
        """Return the arg-max with its margin and probability."""
        ...

    def top(self, row: FloatArray, k: int) -> IntArray:
        """Return the indices of the k largest logits, largest first, equal ones in any order. k: 1 to `MOST_TOP`.

        Infinite and NaN logits raise no error, because drafts made from them are verified anyway.
        """
        ...

    def draw(
        self, row: FloatArray, options: "SamplingOptions", *, key: int, seen: Marked, ids: IntArray | None = None
    ) -> int:
        """Return the id sampled with the noise of `key`: the first arrival among the weights that the options keep.

        Options apply in the order of `SamplingOptions`; greedy options take the arg-max after the penalties.
        seen: the row's indices to penalise, in any order, and how often each was generated.
        ids: int64 [n], the id of each element, ascending; None: its index.
        """
        ...


@runtime_checkable
class Drawing(Protocol):
    """A runtime with a helper."""

    def row_draw(self) -> RowDraw | None:
        """Return a new helper; None: this installation has none."""
        ...


def row_draw_of(runtime: object) -> RowDraw:
    """Return the runtime's helper, or the numpy reference."""
    offered = runtime.row_draw() if isinstance(runtime, Drawing) else None
    return offered or NumpyRowDraw()


class NumpyRowDraw:
    """The reference. Holds no memory between calls; allocations during a call are charged as sampling."""

    def scratch_nbytes(self, size: int) -> int:
        return 0

    def argmax(self, row: FloatArray) -> int:
        return largest(row)

    def leading(self, row: FloatArray) -> Leading:
        best = largest(row)
        top = row[best]
        if not np.isfinite(top):
            raise damaged_logits()
        mass = total_mass(unnormalised(row, top, exponent_scale(1.0))) - int(MASS_UNIT)
        second = max(row[:best].max(initial=-np.inf), row[best + 1 :].max(initial=-np.inf))
        return Leading(best, mass / MASS_UNIT, float(top) - float(second))

    def top(self, row: FloatArray, k: int) -> IntArray:
        """Search a wide row in folded form: the k largest logits are in the k columns with the largest maxima."""
        width = len(row) // _FOLDS
        if len(row) <= _FOLDED or width < k:
            ids = np.argpartition(row, -k)[-k:]
        else:
            maxima = row[: width * _FOLDS].reshape(_FOLDS, width).max(axis=0)
            columns = np.argpartition(maxima, -k)[-k:]
            candidates = (columns + np.arange(_FOLDS)[:, None] * width).ravel()
            candidates = np.concatenate((candidates, np.arange(width * _FOLDS, len(row))))
            ids = candidates[np.argpartition(row[candidates], -k)[-k:]]
        return ids[np.argsort(-row[ids], kind="stable")]

    def draw(
        self, row: FloatArray, options: "SamplingOptions", *, key: int, seen: Marked, ids: IntArray | None = None
    ) -> int:
        row = options.penalised(row, seen, ids=ids)
        if options.greedy:
            index = largest(row)
            return index if ids is None else int(ids[index])
        indices, weights = weighted(row, options, coin=first_uniform(key) if options.xtc_probability else 1.0)
        candidates = indices if ids is None else ids if indices is None else ids[indices]
        place = first_arrivals(key, candidates, weights)[0] if len(weights) > 1 else 0
        return place if candidates is None else int(candidates[place])


def weighted(
    logits: FloatArray, options: "SamplingOptions", *, coin: float, bits: float | None = None
) -> tuple[IntArray | None, FloatArray]:
    """Return the indices to sample from, ascending (None: all), and their weights, float32, positive, not normalised.

    coin: options with a chance apply if it is above this number, from 0 (all of them) to 1 (none). bits: the limit of
    surprise; None: none.
    Indices that tie with the last one of top-k or top-p are kept. Raises CapabilityError for a NaN, or if the largest
    logit is infinite.
    """
    top = logits[largest(logits)]
    if not np.isfinite(top):
        raise damaged_logits()
    indices: IntArray | None = None
    if floors := [least(logits, value) for least, value in options.floors()]:
        indices = np.flatnonzero(logits >= max(floors))
        logits = logits[indices]
    weights = unnormalised(logits, top, exponent_scale(options.temperature))
    for keeps, value in options.truncations(coin):
        indices, weights = _selected(keeps(weights, value), indices, weights)
    if bits is not None:
        indices, weights = _selected(unsurprising(weights, bits), indices, weights)
    return (indices, weights) if weights.all() else _selected(weights > 0, indices, weights)


def _selected(
    kept: npt.NDArray[np.bool_], indices: IntArray | None, weights: FloatArray
) -> tuple[IntArray, FloatArray]:
    places = np.flatnonzero(kept)
    return (places if indices is None else indices[places]), weights[places]
