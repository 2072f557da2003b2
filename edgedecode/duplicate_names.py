"""Refuses a name that occurs twice in a file, because parsers differ in which of the two values they use."""

from collections.abc import Iterable
from typing import TypeVar

_Value = TypeVar("_Value")


def add_once(values: dict[str, _Value], name: str, value: _Value, *, what: str) -> None:
    """Add a named value. what: the kind of name, for the message. Raises ValueError if the name exists."""
    if name in values:
        raise ValueError(f"the {what} {name[:60]!r} appears twice")
    values[name] = value


def unique_keys(pairs: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Return a JSON object, for json's `object_pairs_hook`. Raises ValueError for a duplicate key."""
    found: dict[str, _Value] = {}
    for key, value in pairs:
        add_once(found, key, value, what="key")
    return found
