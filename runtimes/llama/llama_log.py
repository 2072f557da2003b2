"""Capture the engine's log: parse buffer sizes and error reasons, and forward its lines at level DEBUG.

The library has one log per process, so this log belongs to the library, not to a runtime. Lines are kept per thread,
since two threads may create contexts at once.
"""

import ctypes
import logging
import re
from threading import local
from typing import Any, TypeAlias

Untyped: TypeAlias = Any
"""A value of the engine's bindings, which are loosely typed."""

LOGGER = "edgedecode.llama"
ERROR = 4
MIB = 2**20
ROUNDING_NBYTES = MIB // 200
"""The engine prints sizes in hundredths of a MiB."""
_SIZE = re.compile(r"(\S+) +(output|KV|RS|compute|model|LoRA) buffer size = *([0-9.]+) MiB")


class Log:
    """The log lines of this thread's last engine call."""

    def __init__(self, api: Untyped) -> None:
        self._own = local()
        self._logger = logging.getLogger(LOGGER)
        self._callback = api.llama_log_callback(self._take)
        api.llama_log_set(self._callback, ctypes.c_void_p(0))

    @classmethod
    def of(cls, api: Untyped) -> "Log":
        """Return the library's log. It is stored on the library, which calls it for the rest of the process."""
        if not hasattr(api, "edgedecode_log"):
            api.edgedecode_log = cls(api)
        log: Log = api.edgedecode_log
        return log

    def begin(self) -> None:
        """Discard the lines of earlier calls."""
        self._own.sizes, self._own.errors = {}, []

    def sizes(self) -> dict[str, int]:
        """Return the buffers' sizes in bytes by kind, rounded up.

        Kinds: output, KV, RS (recurrent), compute, LoRA, model (copies of weights), mapped (used from the file).
        """
        return dict(getattr(self._own, "sizes", {}))

    def reason(self, *, newest: bool = False) -> str:
        """Return the first error line since `begin` (later ones are less specific), or the newest."""
        errors: list[str] = getattr(self._own, "errors", [])
        return errors[-1 if newest else 0] if errors else "no reason given"

    def _take(self, level: int, text: bytes, _: object) -> None:
        line = text.decode("utf-8", "replace").strip()
        if not hasattr(self._own, "sizes"):
            self.begin()
        if found := _SIZE.search(line):
            kind = "mapped" if found[1].endswith("_Mapped") else found[2]
            nbytes = int(float(found[3]) * MIB) + ROUNDING_NBYTES
            self._own.sizes[kind] = self._own.sizes.get(kind, 0) + nbytes
        if level == ERROR and line:
            self._own.errors = [*self._own.errors[:1], line.partition(": ")[2] or line]
        if line and self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug("%s", line)
