"""The input of a chat: lines from a pipe, or from a terminal with readline. `editor.py` has the full line editor."""

import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Protocol

from edgedecode import InputError
from edgedecode.text.printable import checked_text, decoded_text

from .input_history import InputHistory

PROMPT = "> "
CONTINUED = "… "
_BLOCK = re.compile(r'\s*(/\w+\s+)?"""(.*?)("""\s*)?\Z', re.DOTALL)
"""A message, or the argument of a command, in triple quotes, of which the last three end it."""
QUOTES = '"""'
BLOCKS: Mapping[str, str] = {f"{QUOTES} {QUOTES}": "around a message of several lines"}
QUITTING: Mapping[str, str] = {"Ctrl-C": "stop the answer; twice at the prompt: quit", "Ctrl-D": "quit"}
"""Keys that do the same in every terminal."""


def is_open(text: str) -> bool:
    """Return whether a text begins a block in triple quotes and does not end it."""
    found = _BLOCK.match(text)
    return found is not None and found[3] is None


def unquoted(text: str) -> str:
    """Return a message without the triple quotes around it. A block is never a command."""
    found = _BLOCK.match(text)
    if found is None:
        return text
    command, inner = found[1] or "", found[2].strip("\n")
    return f"{command}{inner}" if command or not inner.startswith("/") else f"/{inner}"


class Assistant(Protocol):
    """Answers an editor's questions about the chat while the user types."""

    def status(self) -> str:
        """Return one line about the state of the chat."""
        ...

    def commands(self) -> Mapping[str, str]:
        """Return the names of the slash commands, without the slash, and their help."""
        ...

    def arguments(self, command: str) -> Mapping[str, str] | None:
        """Return the values that a command takes, and their meanings; None: the name of a file."""
        ...


class Lines(Protocol):
    """A source of input lines."""

    interactive: bool
    keys: Mapping[str, str]
    """Its keys and their effects, for the help."""

    def attended(self, assistant: Assistant) -> AbstractContextManager[object]:
        """While entered, the editor asks the assistant, and owns the terminal between two messages too."""
        ...

    def read(self) -> str | None:
        """Return the next message, None at the end. Raises InputError if it is not UTF-8, KeyboardInterrupt."""
        ...


class TerminalLines:
    """Lines from a terminal. A backslash at the end continues a message on the next line, and so does an open block."""

    interactive = True
    keys: Mapping[str, str] = {"\\ Enter": "begin a new line of the message", **BLOCKS, **QUITTING}

    def __init__(self, history: InputHistory) -> None:
        self._history = history
        with suppress(ImportError):
            import readline  # importing it adds editing and history to `input`

            for entry in history.entries:
                readline.add_history(entry)

    def attended(self, assistant: Assistant) -> AbstractContextManager[object]:
        return nullcontext()

    def read(self) -> str | None:
        parts: list[str] = []
        try:
            while True:
                line = _asked(CONTINUED if parts else PROMPT)
                if not line.endswith("\\") and not is_open("\n".join([*parts, line])):
                    break
                parts.append(line.removesuffix("\\"))
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)  # the cursor is still in the line that was typed
            raise
        except UnicodeDecodeError as error:  # in a strict locale; in a lenient one the bytes become surrogates
            raise InputError(f"the message is not valid UTF-8 at byte {error.start}") from None
        message = checked_text("\n".join([*parts, line]), "the message")
        self._history.add(message)
        return unquoted(message)


def _asked(prompt: str) -> str:
    """Read a line with a prompt, which does not go to a redirected standard output, where the answers go."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


class PipedLines:
    """Lines from a file or a pipe, one message each, or a block in triple quotes."""

    interactive = False
    keys: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._number = 0

    def attended(self, assistant: Assistant) -> AbstractContextManager[object]:
        return nullcontext()

    def read(self) -> str | None:
        message: str | None = None
        while message is None or is_open(message):
            data = sys.stdin.buffer.readline()
            if not data:
                if message is not None:
                    raise InputError(f"a block in {QUOTES} does not end before standard input does")
                return None
            self._number += 1
            line = decoded_text(data, f"line {self._number} of standard input").rstrip("\r\n")
            message = line if message is None else f"{message}\n{line}"
        return unquoted(message)
