"""What takes how much memory: named numbers of bytes, known before any of it is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Holder", "total_nbytes"]


class Holder(NamedTuple):
    """A part of the plan, under the name of the lease that will hold it."""

    name: str
    nbytes: int


def total_nbytes(holders: Iterable[Holder]) -> int:
    """Return the sum."""
    return sum(holder.nbytes for holder in holders)
