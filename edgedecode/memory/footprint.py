"""Named numbers of bytes that a memory plan consists of, known before allocation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Holder(NamedTuple):
    """A part of the plan, named after its later lease."""

    name: str
    nbytes: int


def total_nbytes(holders: Iterable[Holder]) -> int:
    """Return the sum of the holders' bytes."""
    return sum(holder.nbytes for holder in holders)
