"""Converts parsed JSON to dataclasses with strict types, using msgspec. Errors name the field and its value."""

import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from threading import Lock
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta, ValidationError, convert
from msgspec.json import Decoder

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

_MOST = 1 << 53
"""Largest size, count or id; safe in 64-bit arithmetic and arrays, and exact as a float."""
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Amount = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Seconds = Annotated[float, Meta(gt=0, le=_MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]

_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_Kind = TypeVar("_Kind")

_described: set[object] = set()
_describing = Lock()


def described(kind: type[_Kind]) -> type[_Kind]:
    """Return the type once msgspec knows its fields: call this on each type before msgspec reads values of it.

    msgspec describes a type when it first meets it, and lets other threads use a description that is still being made:
    the process then dies of a segmentation fault (msgspec 0.22).
    """
    if kind not in _described:
        with _describing:
            Decoder(kind)
            _described.add(kind)
    return kind


def typed(value: JsonValue, kind: type[_Kind], where: str) -> _Kind:
    """Convert the value to a `kind`, mostly a dataclass; unknown keys are ignored.

    Raises ValueError with one line that begins with the path of the invalid value, starting at `where`.
    """
    try:
        return convert(value, described(kind))
    except ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        place, found = _found(value, kind, path, error=str(error))
        shown = "" if isinstance(found, dict) else f" is {str(found)[:60]!r}"
        raise ValueError(f"{where}{place}{shown}: {what[0].lower()}{what[1:].replace('`', '')}") from None


def _found(value: JsonValue, kind: type[Any], path: str, *, error: str) -> tuple[str, JsonValue]:
    """Return msgspec's error path with the keys of mappings, which msgspec leaves out, and the value there."""
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
    """Reduce a mapping to each of its entries in turn, in place, and yield the entry's key."""
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
