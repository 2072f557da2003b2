"""Colours for streamed text: accepted draft tokens are coloured by drafter, unverified ones stand out.

The text between the codes is unchanged, except on a terminal, where control characters are escaped.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from edgedecode.text.printable import shown_answer

_RESET = "\x1b[0m"
_DIM = "\x1b[2m"


@dataclass(frozen=True, slots=True)
class Shade:
    """A colour of the terminal's palette, and the source of the tokens that have it."""

    name: str
    code: str
    origin: str


SOURCES: Mapping[str, Shade] = {
    "target": Shade("no colour", "", "the target itself"),
    "model": Shade("green", "\x1b[32m", "the draft model"),
    "trim": Shade("bright green", "\x1b[92m", "the draft model with a smaller vocabulary"),
    "tree": Shade("blue", "\x1b[94m", "a draft tree of the draft model"),
    "suffix": Shade("cyan", "\x1b[36m", "a lookup of repeated text"),
    "recycle": Shade("magenta", "\x1b[35m", "the target's earlier candidates"),
    "forced": Shade("underlined", "\x1b[4m", "forced: the grammar allows nothing else"),
    "draft": Shade("yellow", "\x1b[33m", "the draft model, unverified (mode switch)"),
}
"""Sources of tokens, as a chunk names them."""
_OTHER = Shade("bright magenta", "\x1b[95m", "another drafter")


class Paint:
    """Colours text by the source of its tokens; the target's own stay uncoloured.

    terminal: whether the output is a terminal, where control characters in the text are escaped.
    """

    def __init__(self, on: bool, *, terminal: bool = False) -> None:
        self.on, self._terminal = on, terminal
        if on and sys.platform == "win32":
            os.system("")  # enables escape codes in the Windows console

    @classmethod
    def for_stream(cls, stream: TextIO, *, when: str = "auto") -> "Paint":
        """Choose by `when`: always, never, or auto: on a terminal unless NO_COLOR is set."""
        terminal = stream.isatty()
        if when == "auto":
            on = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
            return cls(on, terminal=terminal)
        return cls(when == "always", terminal=terminal)

    def paint(self, text: str, source: str) -> str:
        if self._terminal:
            text = shown_answer(text)
        code = SOURCES.get(source, _OTHER).code if self.on and text else ""
        return f"{code}{text}{_RESET}" if code else text

    def legend(self) -> list[str]:
        """Return a line for each source with the name of its colour, painted in it."""
        shades = {**SOURCES, "other": _OTHER}
        width = max(len(shade.name) for shade in shades.values())
        return [f"{self.paint(f'{shade.name:<{width}}', source)}  {shade.origin}" for source, shade in shades.items()]


def dim(text: str, stream: TextIO) -> str:
    """Return `text`, dimmed if `stream` is a terminal with colours."""
    return f"{_DIM}{text}{_RESET}" if Paint.for_stream(stream).on else text
