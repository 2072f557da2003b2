"""Numbers as words of the command line, checked."""

from __future__ import annotations

from argparse import ArgumentTypeError

__all__ = ["count", "positive"]


def count(text: str) -> int:
    """Parse a whole number of 0 or more."""
    value = _number(text)
    if not (0 <= value < 1e9 and value == int(value)):
        raise ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(value)


def positive(text: str) -> float:
    """Parse a number above 0."""
    value = _number(text)
    if not 0 < value < 1e9:
        raise ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number") from None
