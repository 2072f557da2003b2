"""The child that reads a process's memory until its input ends: light, started by `peaks.py`.

Each byte of input asks for the peaks so far, its end for all there is; an answer is a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, process_time
from typing import NamedTuple

from .process_memory import Counters, ProcessMemory, high_water_nbytes, highest, memory_of

__all__ = ["Course", "MemorySample", "main"]

INTERVAL_SECONDS, LONGEST_SECONDS = 0.02, 0.2
"""Between two looks at the system's counters: 0.1 to 0.4 ms each were measured, with waking up.

The largest number of resident pages is the system's own, and is not missed between two looks.
"""
QUICK_SHARE, FULL_SHARE = 0.006, 0.002
"""Of one processor, at most: for these, and for looks at every page, of which one takes 2 ms for 150 MB."""
WAIT_SECONDS = 1.0
"""Between two looks for the parent once the process has ended."""
MOST_SAMPLES = 512


class MemorySample(NamedTuple):
    """The highest figures from so many seconds after the start until the next sample."""

    seconds: float
    memory: ProcessMemory


class Course:
    """The peaks of a process, and how it came to them: samples that lie wider apart the longer it takes."""

    def __init__(self) -> None:
        self.peak: ProcessMemory | None = None
        self.samples: list[MemorySample] = []
        self._apart = INTERVAL_SECONDS

    def add(self, seconds: float, memory: ProcessMemory) -> None:
        """Take in figures that were read `seconds` after the start."""
        self.peak = memory if self.peak is None else highest(self.peak, memory)
        self.samples.append(MemorySample(seconds, memory))
        if len(self.samples) > 1 and seconds - self.samples[-2].seconds < self._apart:
            self._join()
        if len(self.samples) > MOST_SAMPLES:
            self._thin()

    def raise_resident(self, nbytes: int) -> None:
        """Take in a peak that was between two samples."""
        if self.peak is not None:
            self.peak = highest(self.peak, ProcessMemory(nbytes))

    def _join(self) -> None:
        """Let the newest two samples be one."""
        newest = self.samples.pop()
        self.samples[-1] = MemorySample(self.samples[-1].seconds, highest(self.samples[-1].memory, newest.memory))

    def _thin(self) -> None:
        """Let the samples lie twice as far apart."""
        self._apart *= 2
        all_of_them, self.samples = self.samples, []
        for sample in all_of_them:
            self.samples.append(sample)
            if len(self.samples) > 1 and sample.seconds - self.samples[-2].seconds < self._apart:
                self._join()


class Watch:
    """Looks at a process, closely no more often than that costs little."""

    def __init__(self, pid: int) -> None:
        self.course = Course()
        self.ended = False
        self._pid, self._started = pid, monotonic()
        self._counters = Counters(pid)
        self._close_look_due = 0.0
        self._uncounted = process_time()
        """Processor time that was not for quick looks."""
        self._high_water = high_water_nbytes(pid) or 0

    @property
    def pause_seconds(self) -> float:
        """How long to wait until the next look."""
        if self.ended:
            return WAIT_SECONDS
        due = (process_time() - self._uncounted) / QUICK_SHARE - (monotonic() - self._started)
        return min(max(INTERVAL_SECONDS, due), LONGEST_SECONDS)

    def look(self) -> None:
        """Read what the process holds now."""
        if monotonic() >= self._close_look_due:
            self.look_closely()
        else:
            self._add(self._counters.read())

    def look_closely(self) -> None:
        """Read what the process holds now, page by page, and the highest that the system saw since the start."""
        began = process_time()
        self._add(memory_of(self._pid))
        took = process_time() - began
        self._uncounted += took
        self._close_look_due = monotonic() + took / FULL_SHARE
        if (high_water := high_water_nbytes(self._pid) or 0) > self._high_water:
            self.course.raise_resident(high_water)

    def _add(self, memory: ProcessMemory | None) -> None:
        self.ended = self.ended or memory is None  # its number may be another's by now
        if memory is not None and not self.ended:
            self.course.add(monotonic() - self._started, memory)


def main(pid: int) -> None:
    """Watch a process until the input ends, or the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, whose end ends this
    parent, asked = os.getppid(), SimpleQueue[bytes]()
    Thread(target=_listen, args=(asked,), daemon=True).start()
    watch = Watch(pid)
    watch.look_closely()
    _tell({"peak": watch.course.peak})
    words = b"any"
    while words and os.getppid() == parent:
        try:
            words = asked.get(timeout=watch.pause_seconds)
        except Empty:
            watch.look()
            continue
        watch.look_closely()
        _tell({"peak": watch.course.peak} if words else {"peak": watch.course.peak, "samples": watch.course.samples})


def _listen(asked: SimpleQueue[bytes]) -> None:
    words = b"any"
    while words:
        words = os.read(0, 1)
        asked.put(words)


def _tell(value: object) -> None:
    with suppress(OSError):  # nobody listens any more
        os.write(1, json.dumps(value).encode() + b"\n")
