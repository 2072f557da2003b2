"""The interface of CLI verbs, and parsers of their options' values. Verbs register under the entry-point group
`edgedecode.commands` and are loaded by name."""

from __future__ import annotations

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Protocol

__all__ = [
    "MOST",
    "Command",
    "biased_token",
    "count",
    "name_list",
    "positive_count",
    "real_number",
    "scaled_name",
    "seed",
    "whole_number",
]

MOST = 10**9 - 1
"""The largest count that any option takes."""
_WHOLE = re.compile(r"-?[0-9]+")
_REAL = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BIAS = re.compile(r"([0-9]{1,9})(?:=|(?=[+-]))(.+)")
_SHOWN = 40
"""Longest argument that a message quotes in full, in characters."""


def whole_number(text: str, *, least: int = -MOST, most: int = MOST) -> int:
    """Parse a whole number in plain digits. Raises ArgumentTypeError with what is expected."""
    if not _WHOLE.fullmatch(text):
        raise ArgumentTypeError(f"{_shown(text)} is not a whole number: write it in digits, for example 64")
    value = int(text) if len(text) <= len(str(2**64)) else math.copysign(math.inf, -1 if text[0] == "-" else 1)
    if value < least:
        raise ArgumentTypeError(f"{_shown(text)} is too small: the minimum is {least}")
    if value > most:
        raise ArgumentTypeError(f"{_shown(text)} is too large: the maximum is {most}")
    return int(value)


def count(text: str) -> int:
    """Parse a whole number of 0 or more."""
    return whole_number(text, least=0)


def positive_count(text: str) -> int:
    """Parse a whole number of 1 or more."""
    return whole_number(text, least=1)


def seed(text: str) -> int:
    """Parse a seed: 64 bits."""
    return whole_number(text, least=0, most=2**64 - 1)


def name_list(text: str) -> list[str]:
    """Parse a comma-separated list of names."""
    names = [name for part in text.split(",") if (name := part.strip())]
    if not names:
        raise ArgumentTypeError("give at least one name, or a list such as A,B")
    return names


def real_number(text: str) -> float:
    """Parse a number such as 0.7 or 1e-3. Raises ArgumentTypeError with what is expected."""
    value = float(text) if _REAL.fullmatch(text) else math.inf
    if not math.isfinite(value):
        raise ArgumentTypeError(f"{_shown(text)} is not a number: write it as, for example, 0.7")
    return value


def biased_token(text: str) -> tuple[int, float]:
    """Parse ID=X, or llama.cpp's ID+X and ID-X. Raises ArgumentTypeError with what is expected."""
    found = _BIAS.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{_shown(text)} is no bias of a token: write ID=X, for example 50=-100")
    return int(found[1]), real_number(found[2].removeprefix("+"))


def scaled_name(text: str) -> tuple[str, float]:
    """Parse NAME or NAME:SCALE; the scale defaults to 1."""
    name, colon, scale = text.partition(":")
    if not name.strip():
        raise ArgumentTypeError(f"{_shown(text)} has no name: write NAME or NAME:SCALE")
    return name.strip(), real_number(scale.strip()) if colon else 1.0


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


class Command(Protocol):
    """One verb of the command line. Importing its module must stay light: engines load inside `run`."""

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str:
        """One line for the list of verbs."""
        ...

    def configure(self, parser: ArgumentParser) -> None:
        """Add the verb's arguments."""
        ...

    def run(self, arguments: Namespace) -> int:
        """Do the work and return the exit code. EdgeDecodeError becomes one line on stderr and exit code 1."""
        ...
