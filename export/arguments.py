"""Named paths as words of the command line, checked."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NamedPath", "check_adapter_names", "named_path"]

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<path>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamedPath:
    """An adapter as the command line names it."""

    name: str
    path: Path


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
