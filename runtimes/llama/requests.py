"""What one `forward` asks for: which rows, whether it is a chain, how it is split into passes. Knows indices only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgedecode.errors import InputError
from edgedecode.types import RowRequest

__all__ = ["Piece", "continues", "pieces_of", "places", "wanted_rows"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One engine pass of a request: its rows, and those of them that are outputs, counted from the request's first."""

    start: int
    stop: int
    rows: Sequence[int]


def wanted_rows(rows: RowRequest, *, count: int) -> Sequence[int]:
    """Return the indices of the rows asked for, of `count`. Raises InputError."""
    if isinstance(rows, str):
        if rows == "last":
            return (count - 1,)
        if rows not in ("none", "all"):
            raise InputError(f"rows {rows!r}: none, last, all, or indices")
        return range(count if rows == "all" else 0)
    if len(rows) and not (0 <= min(rows) <= max(rows) < count and len(rows) <= count):
        raise InputError(f"rows {list(rows)[:8]} of a pass of {count} rows")
    return rows


def continues(parents: Sequence[int], *, count: int, after: int) -> bool:
    """Tell whether each row continues the one before it. Raises InputError when they are no tree."""
    if len(parents) != count:
        raise InputError(f"{len(parents)} parents for {count} tokens")
    chain = True
    for index, parent in enumerate(parents, after):
        if not -1 <= parent < index:
            raise InputError(f"row {index} has parent {parent}: parents come before their children, -1 is the root")
        chain = chain and parent == index - 1
    return chain


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
