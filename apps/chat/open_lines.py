"""Chooses the input of a chat: the line editor, readline, or a pipe."""

import os
import sys

from edgedecode import InputError

from .input_history import InputHistory, kept_history
from .lines import Lines, PipedLines, TerminalLines


def open_lines(*, keep_history: bool) -> Lines:
    """Return the lines of standard input. Raises InputError when it is closed.

    keep_history: inputs from a terminal are kept in the user's cache, and earlier ones can be recalled.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed: chat reads the conversation from it")
    if not sys.stdin.isatty():
        return PipedLines()
    history = kept_history() if keep_history else InputHistory()
    if sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb"):
        try:
            from .editor import EditedLines
        except ImportError:  # the extra `chat` is not installed
            pass
        else:
            return EditedLines(history)
    return TerminalLines(history)
