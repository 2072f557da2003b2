"""Word wrap of streamed text: line breaks are added between words, and nothing else is changed.

Works on text alone: the caller knows the terminal's width and writes the pieces.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from math import inf

from rich.cells import cell_len

Piece = tuple[str, str]
"""A text and its source."""
BREAK = "break"
"""The source of a line break that was added."""

_TAB = 8
"""Columns from one tab stop to the next."""
_NARROWEST = 12
"""Columns below which nothing is wrapped: hardly any word would fit."""
_KEPT_TOGETHER = "\u00a0\u2007\u202f"
"""Spaces at which a line must not end."""
_JOINER = "\u200d"
_OPENING, _CLOSING = ("Ps", "Pi"), ("Pe", "Pf", "Po")
"""Unicode categories of punctuation that stays with the next, or the previous, character."""
_FENCE = re.compile(r"\s*(```+|~~~+)([^`]*)")
_LONGEST_FENCE = 200
"""Characters of a code line that are kept to recognise the fence that ends the block."""


class WordWrap:
    """Wraps text that arrives in pieces of any length; the result does not depend on how it was split.

    width: returns the terminal's columns, None if nothing is to be wrapped; asked once per line. A word is written once
    it is complete or known not to fit, so at most one word is held back: call `flush` at the end. A word that is longer
    than a line is put on its own line and left to the terminal. East Asian text is wrapped between its characters, and
    code between fences (``` or ~~~) is not wrapped. The last column stays free for the space after a word.
    """

    def __init__(self, width: Callable[[], int | None]) -> None:
        self._width = width
        self._pieces: list[Piece] = []
        self._held: list[Piece] = []
        """The current word, as long as it may have to go to the next line."""
        self._fence = ""
        """The fence that ends the current code block; empty outside code."""
        self._begin_line()

    def push(self, text: str, source: str = "") -> list[Piece]:
        """Add text and return the pieces that can be written now."""
        for character in text:
            self._add(character, source)
        return self._taken()

    def flush(self) -> list[Piece]:
        """Return the word that was held back."""
        self._release()
        return self._taken()

    def _begin_line(self) -> None:
        width = self._width()
        self._limit = inf if width is None or width < _NARROWEST else width
        self._column = 0
        """The column at which the current word, or the next character, begins."""
        self._word = ""
        self._first = True
        """No word has ended on this line: a break before the current word would leave an empty line."""
        self._too_long = False
        """The first word does not fit; its width is no longer counted."""
        self._line = ""
        """The beginning of the line as it is in the text, without added breaks."""

    def _add(self, character: str, source: str) -> None:
        if character == "\n":
            self._release()
            self._write(character, source)
            self._end_line()
            return
        if len(self._line) < _LONGEST_FENCE:
            self._line += character
        if self._limit == inf or self._fence or _FENCE.match(self._line):
            self._write(character, source)
        elif character.isspace() and character not in _KEPT_TOGETHER:
            self._end_word()
            self._add_space(character, source)
        else:
            if self._word and _may_break(self._word, character):
                self._end_word()
            self._add_to_word(character, source)

    def _add_space(self, character: str, source: str) -> None:
        if self._after_space(character) > self._limit and not self._too_long:
            self._break()
        self._write(character, source)
        self._column = self._after_space(character)

    def _after_space(self, character: str) -> int:
        return (self._column // _TAB + 1) * _TAB if character == "\t" else self._column + cell_len(character)

    def _add_to_word(self, character: str, source: str) -> None:
        if self._first and self._too_long:
            self._write(character, source)
            return
        self._word += character
        fits = self._column + cell_len(self._word) < self._limit
        if self._first:
            self._write(character, source)
            self._too_long = not fits
            return
        self._held.append((character, source))
        if not fits:
            held, self._held = self._held, []
            self._break()
            for piece in held:  # the first word of the new line, for which it may be too long as well
                self._add_to_word(*piece)

    def _end_word(self) -> None:
        self._release()
        if self._word:
            self._column += cell_len(self._word)
            self._word, self._first = "", False

    def _end_line(self) -> None:
        found = _FENCE.fullmatch(self._line)
        if not self._fence:
            self._fence = found[1] if found else ""
        elif found and found[1].startswith(self._fence) and not found[2].strip():
            self._fence = ""
        self._begin_line()

    def _break(self) -> None:
        """Add a line break. The text's own line goes on, so that a fence is recognised only at its beginning."""
        self._pieces.append(("\n", BREAK))
        line = self._line
        self._begin_line()
        self._line = line

    def _release(self) -> None:
        for piece in self._held:
            self._write(*piece)
        self._held = []

    def _write(self, text: str, source: str) -> None:
        if self._pieces and self._pieces[-1][1] == source:
            self._pieces[-1] = (self._pieces[-1][0] + text, source)
        else:
            self._pieces.append((text, source))

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def wrapped(text: str, width: int | None) -> str:
    """Return a complete text with line breaks for this width; None: unchanged."""
    wrap = WordWrap(lambda: width)
    return "".join(piece for piece, _ in [*wrap.push(text), *wrap.flush()])


def _may_break(word: str, character: str) -> bool:
    """Return whether a line may end between a word and the next character: if either is East Asian or an emoji.

    Not within a character of several code points (combining marks, joined emoji, flags), not before closing
    punctuation, and not after opening punctuation.
    """
    last = next((each for each in reversed(word) if cell_len(each)), "")
    if not last or not cell_len(character) or word[-1] == _JOINER or max(cell_len(last), cell_len(character)) < 2:
        return False
    return unicodedata.category(character) not in _CLOSING and unicodedata.category(last) not in _OPENING
