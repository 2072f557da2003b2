"""Numbers and named paths as words of the command line, checked."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NamedPath", "check_adapter_names", "count", "named_path", "positive_count"]

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<path>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamedPath:
    """An adapter as the command line names it."""

    name: str
    path: Path


def count(text: str) -> int:
    """Parse a whole number of 0 or more."""
    value = _number(text)
    if not (0 <= value < 1e9 and value == int(value)):
        raise ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(value)


def positive_count(text: str) -> int:
    """Parse a whole number of 1 or more."""
    value = count(text)
    if value < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return value


def named_path(text: str) -> NamedPath:
    """Parse NAME=PATH; the name can be a file's."""
    found = _NAMED.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not NAME=PATH, with a name of letters, digits, dots and dashes")
    return NamedPath(found["name"], Path(found["path"]))


def check_adapter_names(arguments: Namespace) -> None:
    """End with a usage error where two adapters share a name."""
    names = [adapter.name for adapter in arguments.adapter]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        arguments.usage_error(f"argument --adapter: the name {twice[0]!r} is given twice")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number") from None
