"""Refuses a name that occurs twice in a file: parsers differ in which of the two values they take."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["add_once"]

_Value = TypeVar("_Value")


def add_once(values: dict[str, _Value], name: str, value: _Value, *, what: str) -> None:
    """Add a named value. Raises ValueError, which calls it `what`, for a name that is taken."""
    if name in values:
        raise ValueError(f"the {what} {name[:60]!r} appears twice")
    values[name] = value
