"""How long Ollama's clients ask a model to stay in memory: seconds, or a duration as Go writes it."""

import re
from math import inf
from typing import TypeAlias

from edgedecode import InputError

KeepAlive: TypeAlias = int | float | str
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(ns|us|µs|ms|s|m|h)")
_MOST_SECONDS = 10 * 366 * 24 * 3600
"""Beyond this a model stays: an event loop counts no longer times."""


def keep_seconds(given: KeepAlive | None) -> float:
    """Return the seconds of a field `keep_alive`; infinite: none was given, or a negative one. Raises InputError."""
    if given is None or given == "":
        return inf
    seconds = _duration(given) if isinstance(given, str) else float(given)
    return seconds if 0 <= seconds < _MOST_SECONDS else inf


def _duration(text: str) -> float:
    """Return the seconds of a text such as 1h30m. A number alone counts seconds."""
    sign, plain = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if re.fullmatch(r"\d{1,15}(\.\d{1,15})?", plain):
        return sign * float(plain)
    if not re.fullmatch(f"(?:{_PART.pattern})+", plain):
        raise InputError(f"keep_alive is {text[:40]!r}: give seconds, or a duration as 5m or 1h30m; -1: no limit")
    return sign * sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(plain))
