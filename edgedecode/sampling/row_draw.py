"""Drawing a token from one row of logits: the seam for a faster helper, and the definition in numpy that it must equal.

A helper gives the same token for the same row, options and key, to the last bit of what decides it; so whether there
is one never changes a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from edgedecode.arrays import FloatArray, IntArray

from .counter_rng import first_arrivals
from .masses import MASS_UNIT, damaged_logits, exponent_scale, largest, total_mass, unnormalised
from .weights import weighted

if TYPE_CHECKING:
    from .weights import SamplingOptions

__all__ = ["MOST_TOP", "Drawing", "Leading", "NumpyRowDraw", "RowDraw", "row_draw_of"]

MOST_TOP = 64
_FOLDS = 64
_FOLDED = 16384
"""Rows wider than this are folded before the search: 52 instead of 296 µs at 152,000 logits."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The likeliest element of a row at temperature 1, the first of equal ones."""

    index: int
    others: float
    """The mass of all other elements over its own, to 2**-40."""
    margin: float
    """Its logit less the second largest one; infinite where there is none."""

    @property
    def probability(self) -> float:
        return 1.0 / (1.0 + self.others)


class RowDraw(Protocol):
    """Draws from rows of logits, float32 [n], which are only read. Serves one session, not several threads.

    Every method raises CapabilityError where a logit is NaN; `leading`, and `draw` unless it is greedy, also where the
    largest one is infinite.
    """

    def scratch_nbytes(self, size: int) -> int:
        """Return the bytes it holds for drawing from rows of up to `size` elements; the budget is charged with them."""
        ...

    def argmax(self, row: FloatArray) -> int:
        """Return the index of the largest logit, the first of equal ones."""
        ...

    def leading(self, row: FloatArray) -> Leading:
        """Return the arg-max with its share of the softmax."""
        ...

    def top(self, row: FloatArray, k: int) -> IntArray:
        """Return the indices of the k largest logits, 1 to `MOST_TOP` of them, largest first, equal ones in any order.

        Infinite and NaN logits raise nothing here: what is guessed from them is verified like everything.
        """
        ...

    def draw(
        self, row: FloatArray, options: SamplingOptions, *, key: int, seen: IntArray, ids: IntArray | None = None
    ) -> int:
        """Return the id that the noise of `key` draws: the first arrival among the weights that the options leave.

        The order is that of `SamplingOptions`; greedy options take the arg-max after the penalties.
        seen: int64 indices into the row that penalties count, in any order and any number of times.
        ids: int64 [n], the id of each element, ascending; None: its index.
        """
        ...


@runtime_checkable
class Drawing(Protocol):
    """A runtime that brings its own helper."""

    def row_draw(self) -> RowDraw | None:
        """Return a new helper; None where this installation has none."""
        ...


def row_draw_of(runtime: object) -> RowDraw:
    """Return the runtime's helper, or numpy's."""
    offered = runtime.row_draw() if isinstance(runtime, Drawing) else None
    return offered or NumpyRowDraw()


class NumpyRowDraw:
    """The definition. It holds nothing between calls; what a call allocates is charged as sampling anyway."""

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
        """Find them. A wide row is folded into columns first: they lie in the k columns of the largest maxima."""
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
        self, row: FloatArray, options: SamplingOptions, *, key: int, seen: IntArray, ids: IntArray | None = None
    ) -> int:
        row = options.penalised(row, seen)
        if options.greedy:
            index = largest(row)
            return index if ids is None else int(ids[index])
        indices, weights = weighted(row, options)
        drawn = indices if ids is None else ids if indices is None else ids[indices]
        place = first_arrivals(key, drawn, weights)[0] if len(weights) > 1 else 0
        return place if drawn is None else int(drawn[place])
