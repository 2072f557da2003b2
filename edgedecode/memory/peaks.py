"""The peaks of a process's memory, sampled by a small child process: it goes on while native code runs here."""

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

__all__ = ["PeakSampler"]

_START = "import sys; sys.path += sys.argv[2:]; from edgedecode.memory.peaks_child import main; main(int(sys.argv[1]))"
_LIGHT = ("-I", "-S")
"""Without the environment's and the user's settings, and without site-packages: it starts in 30 ms."""
_PATIENCE_SECONDS = 10.0
_NO_FIGURES = (
    "there is no such process, or this system does not tell what it holds"
    if sys.platform == "linux"
    else "psutil is not installed: pip install 'edgedecode[measure]'"
)


class PeakSampler:
    """Samples a process, this one by default, for as long as it is open: `with PeakSampler() as sampler`.

    Peaks are those since it was opened. What cannot be sampled gives no figures, never an error: `why_not` tells.
    The child shares the interpreter's own pages with this process, which makes its proportional figures a little
    smaller, and nothing else. For one thread.
    """

    def __init__(self, pid: int | None = None) -> None:
        self.why_not = ""
        """Why there are no figures, where there are none."""
        self.samples: tuple[MemorySample, ...] = ()
        """How the process came to its peaks, once the sampler is closed."""
        self._pid = os.getpid() if pid is None else pid
        self._child: subprocess.Popen[bytes] | None = None
        self._peak: ProcessMemory | None = None

    @property
    def peak(self) -> ProcessMemory | None:
        """The highest figure of each kind, up to now, or until it was closed; None where there are none."""
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
                told, _ = child.communicate(timeout=_PATIENCE_SECONDS)  # which ends its input
                self._take(told)
            except subprocess.TimeoutExpired:
                self.why_not = "the sampler did not answer"
            finally:
                child.kill()

    def _start(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:  # a frozen application would start itself
            self.why_not = "there is no Python to run a sampler with"
            return
        command = [sys.executable, *_LIGHT, "-c", _START, str(self._pid), *_folders()]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for us
            )
        except OSError as error:
            self.why_not = f"the sampler could not be started: {error.strerror or error}"
            return
        self._hear()

    def _ask(self) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        with suppress(OSError):  # it ended: then there is nothing to hear either
            self._child.stdin.write(b"\n")
            self._child.stdin.flush()
        self._hear()

    def _hear(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        self._take(self._child.stdout.readline())

    def _take(self, line: bytes) -> None:
        """Take in an answer of the child, empty where it has ended."""
        try:
            told: dict[str, Any] = json.loads(line)
        except ValueError:
            self.why_not = "the sampler ended"
            return
        if told["peak"] is None:
            self.why_not = _NO_FIGURES
        else:
            self._peak = ProcessMemory(*told["peak"])
        self.samples = tuple(
            MemorySample(seconds, ProcessMemory(*memory)) for seconds, memory in told.get("samples", ())
        )


def _folders() -> list[str]:
    """Return where the child finds what it imports."""
    psutil = None if sys.platform == "linux" else find_spec("psutil")
    found = [Path(__file__), *([Path(psutil.origin)] if psutil is not None and psutil.origin else [])]
    return [str(found[0].parents[2]), *(str(path.parents[1]) for path in found[1:])]
