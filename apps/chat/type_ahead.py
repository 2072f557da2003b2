"""Type-ahead: text typed during an answer is kept for the next prompt, and not echoed into the answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

if sys.platform != "win32":
    import termios

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
    # After Ctrl-Z and `fg`, the shell has set its own mode.
    handler = signal.signal(signal.SIGCONT, lambda number, frame: _set_unseen(terminal))
    try:
        yield _keep_unseen(terminal)
    finally:
        signal.signal(signal.SIGCONT, handler)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _keep_unseen(terminal: int) -> str:
    """Switch echo and line editing of the terminal off; return the text that was typed before."""
    _set_unseen(terminal, waits=False)
    typed = os.read(terminal, _MOST_NBYTES)
    _set_unseen(terminal)
    return typed.replace(b"\0", b"").decode("utf-8", "surrogateescape")


def _set_unseen(terminal: int, *, waits: bool = True) -> None:
    """Set the terminal's mode. waits: reading waits for a character."""
    assert sys.platform != "win32"
    mode = termios.tcgetattr(terminal)
    mode[_INPUT_FLAGS] &= ~termios.ICRNL
    mode[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    mode[_LOCAL_FLAGS] |= termios.NOFLSH  # Ctrl-C would discard the end of the answer, and the typed text
    mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = int(waits), 0
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
