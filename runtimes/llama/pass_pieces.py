"""How the rows that one `forward` asks for are split into engine passes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Piece", "pieces_of", "places"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One engine pass of a request: its rows, and those of them that are outputs, counted from the request's first."""

    start: int
    stop: int
    rows: Sequence[int]


def pieces_of(count: int, ascending: Sequence[int], *, width: int, outputs: int) -> Iterator[Piece]:
    """Split `count` rows into passes of at most `width` rows and `outputs` outputs, whose rows are `ascending`."""
    start = filled = 0
    while start < count:
        stop = min(start + width, count)
        end = bisect_left(ascending, stop, filled)
        if end - filled > outputs:
            end = filled + outputs
            stop = ascending[end]
        yield Piece(start, stop, ascending[filled:end])
        start, filled = stop, end


def places(rows: Sequence[int], ascending: Sequence[int]) -> list[int]:
    """Return where each of `rows` stands in `ascending`."""
    place = {row: index for index, row in enumerate(ascending)}
    return [place[row] for row in rows]
