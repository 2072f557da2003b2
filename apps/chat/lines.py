"""The input of a chat: lines from a terminal, with editing and history, or from a pipe."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Protocol

from edgedecode import InputError
from edgedecode.text.printable import checked_text, decoded_text

__all__ = ["Lines", "PipedLines", "TerminalLines", "open_lines"]

_PROMPT = "> "
_CONTINUED = "… "


class Lines(Protocol):
    """A source of input lines."""

    interactive: bool

    def read(self) -> str | None:
        """Return the next message, None at the end. Raises InputError if it is not UTF-8, KeyboardInterrupt."""
        ...


class TerminalLines:
    """Lines from a terminal. A backslash at the end continues a message on the next line."""

    interactive = True

    def __init__(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401  (importing it adds editing and history to `input`)

    def read(self) -> str | None:
        parts: list[str] = []
        try:
            while (line := input(_CONTINUED if parts else _PROMPT)).endswith("\\"):
                parts.append(line[:-1])
        except EOFError:
            print()
            return None
        except UnicodeDecodeError as error:  # in a strict locale; in a lenient one the bytes become surrogates
            raise InputError(f"the message is not valid UTF-8 at byte {error.start}") from None
        return checked_text("\n".join([*parts, line]), "the message")


class PipedLines:
    """Lines from a file or a pipe, one message each."""

    interactive = False

    def __init__(self) -> None:
        self._number = 0

    def read(self) -> str | None:
        data = sys.stdin.buffer.readline()
        if not data:
            return None
        self._number += 1
        return decoded_text(data, f"line {self._number} of standard input").rstrip("\r\n")


def open_lines() -> Lines:
    """Return the lines of standard input. Raises InputError when it is closed."""
    if sys.stdin is None:
        raise InputError("standard input is closed: chat reads the conversation from it")
    return TerminalLines() if sys.stdin.isatty() else PipedLines()
