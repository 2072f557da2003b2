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
class Kind:
    """A kind of sources, named and coloured as on the page. code: of the terminal's own palette."""

    name: str
    colour: str
    code: str
    origin: str


_TARGET = Kind("target", "no colour", "", "the target itself")
_MODEL = Kind("draft model", "green", "\x1b[32m", "the draft model, or a head")
_LOOKUP = Kind("lookup", "cyan", "\x1b[36m", "repeated text, or another drafter")
_RECYCLED = Kind("recycled", "magenta", "\x1b[35m", "the target's earlier candidates")
_FORCED = Kind("forced", "underlined", "\x1b[4m", "the grammar allows nothing else")
_UNVERIFIED = Kind("unverified", "yellow", "\x1b[33m", "the draft model, without the target's check (switch)")
KINDS = (_TARGET, _MODEL, _LOOKUP, _RECYCLED, _FORCED, _UNVERIFIED)
_BY_SOURCE: Mapping[str, Kind] = {
    "target": _TARGET,
    **dict.fromkeys(("model", "trim", "tree", "head"), _MODEL),
    "recycle": _RECYCLED,
    "forced": _FORCED,
    "draft": _UNVERIFIED,
}
"""Kinds by a chunk's source or a drafter's name."""


def kind_of(source: str) -> Kind:
    """Return the kind of a source or drafter; one that is not known is a lookup."""
    return _BY_SOURCE.get(source, _LOOKUP)


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
        code = kind_of(source).code if self.on and text else ""
        return f"{code}{text}{_RESET}" if code else text

    def legend(self) -> list[str]:
        """Return a line for each kind of sources: its name, painted, its colour, and what it is."""
        name, colour = max(len(each.name) for each in KINDS), max(len(each.colour) for each in KINDS)
        painted = [f"{each.code}{each.name}{_RESET}" if self.on and each.code else each.name for each in KINDS]
        return [
            f"{text}{' ' * (name - len(each.name))}  {each.colour:<{colour}}  {each.origin}"
            for text, each in zip(painted, KINDS, strict=True)
        ]


def dim(text: str, stream: TextIO) -> str:
    """Return `text`, dimmed if `stream` is a terminal with colours."""
    return f"{_DIM}{text}{_RESET}" if Paint.for_stream(stream).on else text
