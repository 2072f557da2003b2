"""Count changes of files, and kill the process before or after one of these events. Only a child process's standard
library is patched.

Written bytes are not events: a kill loses the content of Python's buffers in any case.
"""

import builtins
import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHANGES = ("fsync", "replace", "rename", "link", "symlink", "unlink", "remove", "mkdir", "rmdir", "chmod", "truncate")
_WRITING = set("wax+")


@dataclass
class Shim:
    """Count events and kill the process before or right after number `at`; None: never."""

    at: int | None = None
    after: bool = False
    events: list[str] = field(default_factory=list)

    def install(self) -> None:
        for name in CHANGES:
            if hasattr(os, name):
                setattr(os, name, self._counted(name, getattr(os, name), lambda *_, **__: True))
        opened = self._counted("open", io.open, _opens_for_writing)
        io.open = builtins.open = opened  # pathlib uses the first, everything else the second
        os.open = self._counted("open", os.open, lambda path, flags, *_, **__: bool(flags & os.O_CREAT))

    def _counted(self, name: str, real: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        def event(*arguments: Any, **options: Any) -> Any:
            if not counts(*arguments, **options):
                return real(*arguments, **options)
            number = len(self.events)
            self.events.append(name)
            if number == self.at and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*arguments, **options)
            finally:  # an event that failed, such as an existing folder, counts too
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return event


def _opens_for_writing(file: object, mode: str = "r", *_: object, **__: object) -> bool:
    return not isinstance(file, int) and bool(_WRITING & set(mode))
