"""Parsed JSON as dataclasses, with strict types, by msgspec: what is wrong is one line with the field and its value."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta, ValidationError, convert

__all__ = ["Amount", "Count", "Finite", "JsonValue", "Positive", "Seconds", "Share", "typed"]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

_MOST = 1 << 53
"""No size, count or id is larger; arithmetic and arrays of 64 bits take this much."""
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Amount = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Seconds = Annotated[float, Meta(gt=0, le=_MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]

_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_Kind = TypeVar("_Kind")


def typed(value: JsonValue, kind: type[_Kind], where: str) -> _Kind:
    """Return the value as a `kind`, a dataclass mostly; keys that it has not are passed over.

    Raises ValueError, one line that begins with the place of what is wrong, named from `where` on.
    """
    try:
        return convert(value, kind)
    except ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        place, found = _found(value, kind, path, error=str(error))
        shown = "" if isinstance(found, dict) else f" is {str(found)[:60]!r}"
        raise ValueError(f"{where}{place}{shown}: {what[0].lower()}{what[1:].replace('`', '')}") from None


def _found(value: JsonValue, kind: type[Any], path: str, *, error: str) -> tuple[str, JsonValue]:
    """Return a path of msgspec's with the keys of mappings, which it does not tell, and what stands there."""
    whole = inner = deepcopy(value)
    place = ""
    for name, index in _STEP.findall(path):
        if isinstance(inner, list):
            place += f"[{index}]"
            inner = inner[int(index)]
        elif isinstance(inner, dict):
            key = name or next(key for key in _each_alone(inner) if _error(whole, kind) == error)
            place += f".{key if key.isprintable() else repr(key)}"
            inner = inner[key]
    return place, inner


def _each_alone(entries: dict[str, JsonValue]) -> Iterator[str]:
    """Take all entries but one out of a mapping and yield its key; then the same with the next one."""
    for key, entry in list(entries.items()):
        entries.clear()
        entries[key] = entry
        yield key


def _error(value: JsonValue, kind: type[Any]) -> str:
    try:
        convert(value, kind)
    except ValidationError as error:
        return str(error)
    return ""
