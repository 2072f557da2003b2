"""Numbers in answers: thousands separators, decimals, signs, currencies and units, and GSM8K's mark ####."""

import re
from decimal import Decimal

MARK = "####"
"""GSM8K's references have their number behind this mark, and models trained on them their answers."""
_NUMBER = re.compile(
    r"(?<![\w.])[$€£]?(?P<sign>[-+−]?)[$€£]?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]*)"
    r"(?P<rest>\.[0-9]+)?(?P<power>[eE][-+]?[0-9]{1,3}(?!\w))?"
)
_UNIT = re.compile(r"\s*[%°]?\s*[^\W\d_]*\.?\s*")
_LONGEST = 100_000
"""Characters at the end of an answer that are searched."""


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, or the first one behind its last mark; None if there is none."""
    text = text[-_LONGEST:]
    if MARK in text and (marked := _numbers(text.rpartition(MARK)[2])):
        return marked[0]
    found = _numbers(text)
    return found[-1] if found else None


def is_number(text: str) -> bool:
    """Tell whether a text is a number and nothing else but a currency or a unit."""
    text = text.strip()
    found = _NUMBER.match(text)
    return found is not None and _value(found) is not None and _UNIT.fullmatch(text, found.end()) is not None


def _numbers(text: str) -> list[Decimal]:
    return [value for found in _NUMBER.finditer(text) if (value := _value(found)) is not None]


def _value(found: re.Match[str]) -> Decimal | None:
    """Return a match's value; None for a match without digits."""
    whole, rest = found["whole"].replace(",", ""), found["rest"] or ""
    if not whole and not rest:
        return None
    sign = "-" if found["sign"] in ("-", "−") else ""
    return Decimal(f"{sign}{whole or 0}{rest}{found['power'] or ''}")
