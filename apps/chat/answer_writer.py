"""Writes a streamed answer: coloured by source, and on a terminal wrapped between words."""

from __future__ import annotations

import os
from typing import TextIO

from edgedecode.text.printable import shown_answer

from ..colour import Paint
from .word_wrap import BREAK, Piece, WordWrap


class AnswerWriter:
    """Writes one answer. Where the stream is not a terminal, the text is not wrapped."""

    def __init__(self, stream: TextIO, paint: Paint) -> None:
        self._stream, self._paint = stream, paint
        self._wrap = WordWrap(lambda: terminal_columns(stream)) if stream.isatty() else None
        self._last = "\n"

    def write(self, text: str, source: str) -> None:
        """Write a piece of the answer; on a terminal, a word that may have to go to the next line waits for its end."""
        # Escaped before it is wrapped: an escaped control character takes several columns.
        pieces = [(text, source)] if self._wrap is None else self._wrap.push(shown_answer(text), source)
        self._put(pieces)

    def end(self) -> None:
        """Write the word that was held back, and end the line."""
        if self._wrap is not None:
            self._put(self._wrap.flush())
        if not self._last.endswith("\n"):
            self._stream.write("\n")
            self._stream.flush()

    def _put(self, pieces: list[Piece]) -> None:
        for text, source in pieces:
            self._stream.write(text if source == BREAK else self._paint.paint(text, source))
            self._last = text or self._last
        self._stream.flush()


def terminal_columns(stream: TextIO) -> int | None:
    """Return the width of the terminal that the stream writes to; None: it is not a terminal, or has no known width."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns or None) if stream.isatty() else None
    except OSError:
        return None
