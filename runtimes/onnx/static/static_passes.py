"""Splits a request into passes of fixed widths."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edgedecode.pack.static_graphs import HEAD_ROWS, head_rows

_FEW_PASSES = 2
"""Passes of the next narrower width that are preferred to one prefill pass, most of whose rows would be padding."""


class StaticPiece(NamedTuple):
    """One pass of a request: its width, its rows from start to stop, and those with logits, counted from `start`."""

    width: int
    start: int
    stop: int
    rows: list[int]


def split_static(count: int, ascending: Sequence[int], widths: Sequence[int]) -> Iterator[StaticPiece]:
    """Split a request of `count` rows with logits of the `ascending` rows into passes of these ascending widths."""
    start = filled = 0
    while start < count:
        width = _next_width(count - start, [row - start for row in ascending[filled:]], widths)
        stop = min(count, start + width)
        here = [row - start for row in ascending[filled:] if row < stop]
        yield StaticPiece(width, start, stop, here)
        filled += len(here)
        start = stop


def _next_width(remaining: int, rows: Sequence[int], widths: Sequence[int]) -> int:
    """Return the width of the next pass: the smallest that covers the rest, else the widest with enough logits."""
    able = [width for width in widths if sum(row < min(width, remaining) for row in rows) <= head_rows(width)]
    covering = next((width for width in able if width >= remaining), None)
    below = max((width for width in able if width < remaining), default=None)
    if covering is None or below is None:
        found = covering or below
        assert found is not None, "the narrowest width gives every row logits"
        return found
    if covering > HEAD_ROWS and remaining <= _FEW_PASSES * below:
        return below
    return covering
