"""Measures peak memory with a small child process, which keeps sampling while native code runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from .peaks_child import MemorySample
from .process_memory import ProcessMemory

_START = "import sys; sys.path += sys.argv[2:]; from edgedecode.memory.peaks_child import main; main(int(sys.argv[1]))"
_LIGHT = ("-I", "-S")
"""Isolated and without site-packages, so that it starts in 30 ms."""
_TIMEOUT_SECONDS = 10.0
_NO_FIGURES = (
    "the process does not exist, or this system does not report its memory"
    if sys.platform == "linux"
    else "psutil is not installed: pip install 'edgedecode[measure]'"
)


class PeakSampler:
    """Samples a process, this one by default, while it is open: `with PeakSampler() as sampler`.

    Peaks are those since it was opened. A failure to sample raises no error; `why_not` has the reason.
    The child shares the interpreter's pages with this process, which slightly lowers the proportional figures.
    Not thread-safe.
    """

    def __init__(self, pid: int | None = None) -> None:
        self.why_not = ""
        """Why there are no figures; empty: there are some."""
        self.samples: tuple[MemorySample, ...] = ()
        """Memory over time; filled when the sampler is closed."""
        self._pid = os.getpid() if pid is None else pid
        self._child: subprocess.Popen[bytes] | None = None
        self._peak: ProcessMemory | None = None

    @property
    def peak(self) -> ProcessMemory | None:
        """The highest figure of each kind until now, or until closing; None if there are no figures."""
        if self._child is not None:
            self._ask()
        return self._peak

    def __enter__(self) -> PeakSampler:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the last sample and end the child. Idempotent."""
        child, self._child = self._child, None
        if child is None:
            return
        with child:
            try:
                reply, _ = child.communicate(timeout=_TIMEOUT_SECONDS)  # closes its input
                self._store(reply)
            except subprocess.TimeoutExpired:
                self.why_not = "the sampler did not answer"
            finally:
                child.kill()

    def _start(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:  # a frozen application would start itself
            self.why_not = "there is no Python interpreter to run the sampler with"
            return
        command = [sys.executable, *_LIGHT, "-c", _START, str(self._pid), *_folders()]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal must not reach it
            )
        except OSError as error:
            self.why_not = f"the sampler could not be started: {error.strerror or error}"
            return
        self._read_reply()

    def _ask(self) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        with suppress(OSError):  # the child ended: the empty reply reports that
            self._child.stdin.write(b"\n")
            self._child.stdin.flush()
        self._read_reply()

    def _read_reply(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        self._store(self._child.stdout.readline())

    def _store(self, line: bytes) -> None:
        """Store a reply of the child; it is empty if the child has ended."""
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError:
            self.why_not = "the sampler ended"
            return
        if reply["peak"] is None:
            self.why_not = _NO_FIGURES
        else:
            self._peak = ProcessMemory(*reply["peak"])
        self.samples = tuple(
            MemorySample(seconds, ProcessMemory(*memory)) for seconds, memory in reply.get("samples", ())
        )


def _folders() -> list[str]:
    """Return the folders from which the child imports."""
    psutil = None if sys.platform == "linux" else find_spec("psutil")
    found = [Path(__file__), *([Path(psutil.origin)] if psutil is not None and psutil.origin else [])]
    return [str(found[0].parents[2]), *(str(path.parents[1]) for path in found[1:])]
