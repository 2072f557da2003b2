"""Renders and parses sizes in bytes, such as 800MB."""

import re

from edgedecode.errors import InputError

_SIZE = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?(E[0-9]+)?) ?(?P<unit>|[KMGT]I?)B?")
_LEAST = 10**6
"""A size without a unit below this many bytes is a slip: no process that runs a model is as small."""
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS = _DECIMAL | {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def format_nbytes(nbytes: int, decimals: int = 1) -> str:
    """Render bytes in decimal megabytes, as `12.3 MB`."""
    return f"{nbytes / 1e6:.{decimals}f} MB"


def decimals(more: int, less: int) -> int:
    """Return the number of decimals at which two sizes differ when rendered."""
    return next((n for n in range(1, 6) if format_nbytes(more, n) != format_nbytes(less, n)), 6)


def size_option(nbytes: int) -> str:
    """Render bytes as an argument for `--memory`, rounded up."""
    return f"{-(-nbytes // 10**5) / 10:g}MB"


def parse_nbytes(text: str) -> int:
    """Read a size such as 800MB, 1.5G, 512MiB or 1000000. Raises InputError."""
    found = _SIZE.fullmatch(text.strip().upper())
    value = float(found["number"]) if found else 0.0
    if found is None or not 0 < value < 1e15:
        raise InputError(f"{text!r} is not a size: write for example 800MB, 1.5GB or 512MiB")
    if value < _LEAST and not found["unit"] and text.strip()[-1] not in "Bb":
        unit = "GB" if value < 64 else "MB" if value < 10**5 else "KB"  # what a machine of today may have
        raise InputError(f"{text!r} has no unit, so it is in bytes: did you mean {value:g}{unit}?")
    return int(value * _UNITS[found["unit"]])
