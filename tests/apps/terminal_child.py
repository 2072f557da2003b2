"""A command in a child process whose terminal is a pseudo-terminal of this one."""

import os
import re
import select
import subprocess
import sys
import termios
from collections.abc import Sequence
from time import monotonic
from types import TracebackType

__all__ = ["TerminalChild"]

_CODE = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {before}; "
    "from edgedecode.cli import main; sys.exit(main())"
)
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>]|\][^\x07]*\x07)")
_WHERE = b"\x1b[6n"
"""A question for the cursor's position, which terminals answer; the editor waits for it to show its status line."""
_SECONDS = 60.0


class TerminalChild:
    """Runs `edgedecode WORDS` on a terminal of `columns` by 24; `before` is code that the child runs first.

    `output` is everything it wrote, without escape codes. `until` waits for a text after the one found last.
    """

    def __init__(self, words: Sequence[str], *, columns: int = 80, before: str = "pass", **environment: str) -> None:
        self._terminal, child = os.openpty()
        termios.tcsetwinsize(child, (24, columns))
        self._child_end = child
        self.mode = termios.tcgetattr(child)
        """The terminal's mode before the command began."""
        self.output, self._seen, self._raw = "", 0, b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE.format(before=before), *words],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", **environment},
        )

    def send(self, text: str) -> None:
        """Type a text; Enter is a carriage return."""
        os.write(self._terminal, text.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Return the next match of a regular expression in the output. Fails the test if it does not come."""
        end = monotonic() + _SECONDS
        while (found := re.compile(pattern).search(self.output, self._seen)) is None:
            assert monotonic() < end, f"{pattern!r} is not in {self.output[self._seen :]!r}"
            assert self._read(end - monotonic()), f"{pattern!r} is not in {self.output[self._seen :]!r}"
        self._seen = found.end()
        return found

    def types(self, text: str, pattern: str) -> None:
        """Type a text, and wait for what it leads to."""
        self.send(text)
        self.until(pattern)

    def quit(self) -> None:
        """Press Ctrl-D, and check that the command ends well."""
        self.send("\x04")
        assert self.end() == 0

    def end(self) -> int:
        """Return the exit code once the command has ended."""
        code = self._process.wait(_SECONDS)
        while self._read(0.0):
            pass
        return code

    def mode_now(self) -> list[object]:
        return termios.tcgetattr(self._child_end)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # no process has the terminal open any more
            return False
        self._raw += data
        for _ in range(data.count(_WHERE)):
            self.send("\x1b[1;1R")
        self.output = re.sub(r"\r+\n", "\n", _ESCAPES.sub("", self._raw.decode("utf-8", "replace")))
        return True

    def __enter__(self) -> "TerminalChild":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)
        os.close(self._child_end)
