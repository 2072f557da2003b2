"""Samples a process's memory until standard input ends. Run as a lightweight child process by `peaks.py`.

Each input byte requests the peaks so far, end of input requests all samples; a reply is one line of JSON.
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

INTERVAL_SECONDS, LONGEST_SECONDS = 0.02, 0.2
"""Shortest and longest time between two reads of the counters; a read was measured at 0.1 to 0.4 ms, with the wake-up.

The kernel tracks peak resident pages itself, so that no such peak is missed between two reads.
"""
QUICK_SHARE, FULL_SHARE = 0.006, 0.002
"""Most of one processor spent on counter reads, and on reads of every page, which take 2 ms for 150 MB."""
WAIT_SECONDS = 1.0
"""Time between two checks for the parent once the process has ended."""
MOST_SAMPLES = 512
"""More samples than this are merged to half the time resolution."""


class MemorySample(NamedTuple):
    """The highest figures from `seconds` after the start until the next sample."""

    seconds: float
    memory: ProcessMemory


class Course:
    """The peaks of a process and its samples over time. The time between samples grows with the run time."""

    def __init__(self) -> None:
        self.peak: ProcessMemory | None = None
        self.samples: list[MemorySample] = []
        self._interval = INTERVAL_SECONDS

    def add(self, seconds: float, memory: ProcessMemory) -> None:
        """Add figures read `seconds` after the start."""
        self.peak = memory if self.peak is None else highest(self.peak, memory)
        self._append(MemorySample(seconds, memory))
        if len(self.samples) > MOST_SAMPLES:
            self._thin()

    def raise_resident(self, nbytes: int) -> None:
        """Raise the peak to one that occurred between two samples."""
        if self.peak is not None:
            self.peak = highest(self.peak, ProcessMemory(nbytes))

    def _append(self, sample: MemorySample) -> None:
        """Append a sample, or merge it into the last one if that began less than an interval before."""
        last = self.samples[-1] if self.samples else None
        if last is not None and sample.seconds - last.seconds < self._interval:
            self.samples[-1] = MemorySample(last.seconds, highest(last.memory, sample.memory))
        else:
            self.samples.append(sample)

    def _thin(self) -> None:
        """Double the time between samples."""
        self._interval *= 2
        dense, self.samples = self.samples, []
        for sample in dense:
            self._append(sample)


class Watch:
    """Samples a process: counters often, every page only as often as the processor shares allow."""

    def __init__(self, pid: int) -> None:
        self.course = Course()
        self.ended = False
        self._pid, self._started = pid, monotonic()
        self._counters = Counters(pid)
        self._full_sample_due = 0.0
        self._excluded = process_time()
        """Processor time that does not count as quick samples: start-up and full samples."""
        self._high_water = high_water_nbytes(pid) or 0

    @property
    def pause_seconds(self) -> float:
        """Seconds to wait until the next sample."""
        if self.ended:
            return WAIT_SECONDS
        due = (process_time() - self._excluded) / QUICK_SHARE - (monotonic() - self._started)
        return min(max(INTERVAL_SECONDS, due), LONGEST_SECONDS)

    def sample(self) -> None:
        """Read the process's counters, or every page when that is due."""
        if monotonic() >= self._full_sample_due:
            self.sample_fully()
        else:
            self._add(self._counters.read())

    def sample_fully(self) -> None:
        """Read the process's memory page by page, and the kernel's peak since the start."""
        began = process_time()
        self._add(memory_of(self._pid))
        took = process_time() - began
        self._excluded += took
        self._full_sample_due = monotonic() + took / FULL_SHARE
        if (high_water := high_water_nbytes(self._pid) or 0) > self._high_water:
            self.course.raise_resident(high_water)

    def _add(self, memory: ProcessMemory | None) -> None:
        self.ended = self.ended or memory is None  # another process may have the pid by now
        if memory is not None and not self.ended:
            self.course.add(monotonic() - self._started, memory)


def main(pid: int) -> None:
    """Sample a process until the input or the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and its end ends this process
    parent, requests = os.getppid(), SimpleQueue[bytes]()
    Thread(target=_listen, args=(requests,), daemon=True).start()
    watch = Watch(pid)
    watch.sample_fully()
    _reply({"peak": watch.course.peak})
    request = b"any"
    while request and os.getppid() == parent:
        try:
            request = requests.get(timeout=watch.pause_seconds)
        except Empty:
            watch.sample()
            continue
        watch.sample_fully()
        _reply({"peak": watch.course.peak} if request else {"peak": watch.course.peak, "samples": watch.course.samples})


def _listen(requests: SimpleQueue[bytes]) -> None:
    request = b"any"
    while request:
        request = os.read(0, 1)
        requests.put(request)


def _reply(value: object) -> None:
    with suppress(OSError):  # the parent has closed the pipe
        os.write(1, json.dumps(value).encode() + b"\n")
