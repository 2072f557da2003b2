"""Which rows of a pass were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.errors import InputError
from edgedecode.types import RowRequest

__all__ = ["wanted_rows"]


def wanted_rows(rows: RowRequest, count: int) -> Sequence[int]:
    """Return the row indices that are asked for. Raises InputError for rows that a pass of `count` has not."""
    if isinstance(rows, str):
        if rows == "last":
            return (count - 1,)
        if rows not in ("none", "all"):
            raise InputError(f"rows {rows!r}: none, last, all, or indices")
        return range(count if rows == "all" else 0)
    if len(rows) and not (0 <= min(rows) <= max(rows) < count and len(rows) <= count):
        raise InputError(f"rows {list(rows)[:8]} of a pass of {count} rows")
    return rows
