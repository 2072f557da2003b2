"""Reads numbers and tables that this program wrote to a cache, where anything may stand by now. Raises ValueError."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["finite", "mapping", "optional", "positive"]


def mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no table")
    return value


def finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def positive(value: object) -> float:
    """Return a number that is 0 or more."""
    number = finite(value)
    if number < 0:
        raise ValueError(f"{value!r} is negative")
    return number


def optional(value: object) -> float | None:
    return None if value is None else positive(value)
