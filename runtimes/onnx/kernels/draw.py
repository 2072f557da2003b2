"""Sample tokens with the native functions of draw.cpp: the same tokens as numpy's, about ten times faster."""

from ctypes import CDLL, c_double, c_float, c_int64, c_uint64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.sampling.masses import damaged_logits, exponent_scale
from edgedecode.sampling.penalties import Marked, repeated
from edgedecode.sampling.row_draw import MOST_TOP, Leading, NumpyRowDraw
from edgedecode.sampling.truncations import kth_largest, near_best, nucleus

if TYPE_CHECKING:
    from edgedecode.sampling.weights import SamplingOptions

_KNOWN = frozenset({None, repeated, kth_largest, nucleus, near_best})
"""What options do that the library does too. Other truncations take numpy's draw, other penalties its penalties."""
_LONGEST_ROW = 2**22
"""Limit that keeps sums of masses far within 64 bits."""
_INTEGERS = np.dtype(np.int64)
_FLOATS = np.dtype(np.float32)


class NativeRowDraw:
    """A `RowDraw` over the loaded library. Holds scratch memory for the largest row so far."""

    def __init__(self, handle: CDLL) -> None:
        """Use a loaded library. Raises AttributeError if it lacks the functions."""
        self._top = handle.edgedecode_top_row
        self._argmax, self._leading = handle.edgedecode_argmax_row, handle.edgedecode_leading_row
        self._draw, self._scratch_nbytes = handle.edgedecode_draw_row, handle.edgedecode_draw_scratch
        self._argmax.argtypes = [c_void_p, c_int64]
        self._leading.argtypes = [c_void_p, c_int64, c_void_p]
        self._top.argtypes = [c_void_p, c_int64, c_int64, c_void_p]
        self._draw.argtypes = [
            *(c_void_p, c_void_p, c_int64, c_float, c_int64, c_double, c_float, c_float),
            *(c_void_p, c_int64, c_uint64, c_void_p),
        ]
        self._scratch_nbytes.argtypes = [c_int64]
        for function in (self._argmax, self._leading, self._top, self._draw, self._scratch_nbytes):
            function.restype = c_int64
        self._numpy = NumpyRowDraw()
        self._found = np.empty(2)
        self._found_at = self._found.ctypes.data
        self._scratch = np.empty(0, np.uint64)
        self._scratch_at = 0
        self._room = 0

    def scratch_nbytes(self, size: int) -> int:
        return int(self._scratch_nbytes(size))

    def argmax(self, row: FloatArray) -> int:
        row = _floats(row)
        return _checked(self._argmax(row.ctypes.data, len(row)))

    def leading(self, row: FloatArray) -> Leading:
        row = _floats(row)
        index = _checked(self._leading(row.ctypes.data, len(row), self._found_at))
        return Leading(index, float(self._found[0]), float(self._found[1]))

    def top(self, row: FloatArray, k: int) -> IntArray:
        row = _floats(row)
        found = np.empty(k, _INTEGERS)
        if self._top(row.ctypes.data, len(row), k, found.ctypes.data) != k:
            raise ValueError(f"cannot return the {k} largest of {len(row)} logits: use 1 to {MOST_TOP}")
        return found

    def draw(
        self, row: FloatArray, options: "SamplingOptions", *, key: int, seen: Marked, ids: IntArray | None = None
    ) -> int:
        active, penalty = options.active.values(), options.repetition_penalty
        if not all(option.keeps in _KNOWN and option.least in _KNOWN for option in active):
            return self._numpy.draw(row, options, key=key, seen=seen, ids=ids)
        if options.logit_bias or not all(option.penalise in _KNOWN for option in active):
            row, penalty = options.penalised(row, seen, ids=ids), 1.0
        row = _floats(row)
        size = len(row)
        if options.greedy and penalty == 1:
            index = _checked(self._argmax(row.ctypes.data, size))
            return index if ids is None else int(ids[index])
        if size > self._room:
            self._grow(size)
        ids = None if ids is None else np.ascontiguousarray(ids, _INTEGERS)
        places = np.ascontiguousarray(seen.ids, _INTEGERS)
        token = self._draw(
            row.ctypes.data,
            None if ids is None else ids.ctypes.data,
            size,
            0.0 if options.greedy else float(exponent_scale(options.temperature)),
            options.top_k,
            options.top_p,
            options.min_p,
            penalty,
            places.ctypes.data,
            len(places),
            key,
            self._scratch_at,
        )
        return _checked(token)

    def _grow(self, size: int) -> None:
        if size > _LONGEST_ROW:
            raise ValueError(f"a row has {size} logits: the limit is {_LONGEST_ROW}")
        self._scratch = np.empty(-(-self.scratch_nbytes(size) // 8), np.uint64)
        self._scratch_at, self._room = self._scratch.ctypes.data, size


def _floats(row: FloatArray) -> FloatArray:
    """Return the row as contiguous float32, copied only if needed. Raises ValueError for an empty row."""
    if not len(row):
        raise ValueError("a row without logits")
    return row if row.dtype == _FLOATS and row.flags.c_contiguous else np.ascontiguousarray(row, _FLOATS)


def _checked(index: int) -> int:
    if index < 0:
        raise damaged_logits()
    return index
