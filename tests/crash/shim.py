"""Counts what changes files, and kills the process before or after one of these events. Patches the standard library
of a child process only: the package knows nothing of it.

Written bytes are no events: a kill loses what is still in Python's buffers, as it would be torn anywhere.
"""

from __future__ import annotations

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
    """Counts events; at number `at` the process is killed, before the event or right after it. None: never."""

    at: int | None = None
    after: bool = False
    events: list[str] = field(default_factory=list)

    def install(self) -> None:
        for name in CHANGES:
            if hasattr(os, name):
                setattr(os, name, self._counted(name, getattr(os, name), lambda *_, **__: True))
        opened = self._counted("open", io.open, _opens_for_writing)
        io.open = builtins.open = opened  # pathlib takes the one, everybody else the other
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
            finally:  # an event that failed, such as a folder that was there, is one too
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return event


def _opens_for_writing(file: object, mode: str = "r", *_: object, **__: object) -> bool:
    return not isinstance(file, int) and bool(_WRITING & set(mode))
