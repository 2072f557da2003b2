"""Unicode's normal form C for the native library: tables of what the `tokenizers` library does."""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import normalizers

from .splits import CODES

_SYLLABLES = range(0xAC00, 0xD7A4)
"""Hangul, which the library composes of letters by arithmetic."""
_LETTERS = [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]
"""Hangul's vowels and tails, which join what comes before."""
_SURROGATES = range(0xD800, 0xE000)
_DECOMPOSES, _SECOND = 64, 128


@dataclass(frozen=True, slots=True)
class FormTables:
    """forms: of every code point the place in the canonical order (0: a starter), and whether it may change.

    decomposed: code, start and count in `parts`. composed: first, second, whole. Both sorted.
    """

    forms: npt.NDArray[np.uint8]
    decomposed: npt.NDArray[np.uint32]
    parts: npt.NDArray[np.uint32]
    composed: npt.NDArray[np.uint32]


def form_tables() -> FormTables:
    """Return the tables. The library's Unicode is older or newer than Python's: each character is tried."""
    decompose, compose = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    forms = np.zeros(CODES, np.uint8)
    decomposed, parts, composed = list[tuple[int, int, int]](), list[int](), list[tuple[int, int, int]]()
    for code, place in _orders(decompose).items():
        forms[code] = place
    for code in _changed(decompose):
        text = decompose(chr(code))
        forms[code] |= _DECOMPOSES
        decomposed.append((code, len(parts), len(text)))
        parts += map(ord, text)
        first, second = compose(text[:-1]), text[-1]
        if len(first) == 1 and compose(first + second) == chr(code):
            composed.append((ord(first), ord(second), code))
            forms[ord(second)] |= _SECOND
    forms[_LETTERS] |= _SECOND
    tables = (np.array(rows, np.uint32) for rows in (decomposed, parts, sorted(composed)))
    return FormTables(forms, *tables)


def _changed(decompose: Callable[[str], str]) -> list[int]:
    """Return the code points that decompose, but for Hangul."""
    codes = (*range(_SURROGATES.start), *range(_SURROGATES.stop, 0x30000))
    return [code for code in codes if code not in _SYLLABLES and decompose(chr(code)) != chr(code)]


def _orders(decompose: Callable[[str], str]) -> dict[int, int]:
    """Return the place in the canonical order of each code point that is no starter, from 1 on."""
    marks = [code for code in range(0x20000) if unicodedata.combining(chr(code))]
    classes = sorted({unicodedata.combining(chr(code)) for code in marks})
    return {code: 1 + classes.index(unicodedata.combining(chr(code))) for code in marks if _moves(code, decompose)}


def _moves(code: int, decompose: Callable[[str], str]) -> bool:
    """Return whether the library puts a mark into order: it does not know those of a newer Unicode."""
    first, last = "\u0334", "\u0345"  # the first class and the last one
    mark = chr(code)
    return decompose(f"a{mark}{first}") != f"a{mark}{first}" or decompose(f"a{last}{mark}") != f"a{last}{mark}"
