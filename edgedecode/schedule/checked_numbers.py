"""Reads numbers and tables that this program wrote to a cache, where anything may stand by now. Raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["amount", "finite", "mapping", "optional_amount", "positive"]

_LARGEST, _SMALLEST = 1e15, 1e-12
"""Whatever is counted or timed lies between: quotients and products of a few stay finite."""


def mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{str(value)[:40]!r} is not a table")
    return value


def finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is not a number that can be")
    return float(value)


def amount(value: object) -> float:
    """Return a number that is 0 or more."""
    number = finite(value)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def positive(value: object) -> float:
    """Return a number that may be divided by."""
    number = finite(value)
    if number < _SMALLEST:
        raise ValueError(f"{number} is negative or 0")
    return number


def optional_amount(value: object) -> float | None:
    return None if value is None else amount(value)
