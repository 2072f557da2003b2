"""Type-ahead: text typed during an answer is kept for the next prompt, and not echoed into the answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

if sys.platform != "win32":
    import termios

__all__ = ["typing_ahead"]

_MOST_NBYTES = 1 << 16
_INPUT_FLAGS, _LOCAL_FLAGS, _CHARACTERS = 0, 3, 6
"""Places in the list of a terminal's attributes."""


@contextmanager
def typing_ahead(terminal: int) -> Iterator[str]:
    """While entered, the terminal keeps typed characters unseen and unchanged; yields the text typed before.

    Enter stays a carriage return, which an editor needs to tell it from Ctrl-J. Ctrl-C and Ctrl-Z work. On Windows
    nothing is changed.
    """
    if sys.platform == "win32":
        yield ""
        return
    before = termios.tcgetattr(terminal)
    try:
        yield _keep_unseen(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _keep_unseen(terminal: int) -> str:
    """Switch echo and line editing of the terminal off; return the text that was typed before."""
    assert sys.platform != "win32"
    mode = termios.tcgetattr(terminal)
    mode[_INPUT_FLAGS] &= ~termios.ICRNL
    mode[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 0, 0  # the read does not wait
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
    typed = os.read(terminal, _MOST_NBYTES)
    mode[_CHARACTERS][termios.VMIN] = 1
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
    return typed.replace(b"\0", b"").decode("utf-8", "surrogateescape")
