"""PeakSampler: it measures what a process held, and its own child process ends in every case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedecode.memory import process_memory
from edgedecode.memory.peaks import PeakSampler
from edgedecode.memory.peaks_child import MOST_SAMPLES, Course
from edgedecode.memory.process_memory import Counters, ProcessMemory, highest, memory_now, memory_of

MB = 10**6
REPORTED = Path("/proc/self/smaps_rollup").exists()
NEEDS_SMAPS = pytest.mark.skipif(not REPORTED, reason="this system does not report it")
APART_NBYTES = 2 * MB
"""Memory that the interpreter itself may take between two readings; 0.6 MB were measured."""

STEPS = """
import mmap, sys
file = open(sys.argv[1], "rb")
held = {}

def take(kind, size):
    if kind == "anonymous":
        held[kind] = bytearray(b"x") * size
    else:
        held[kind] = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        sum(held[kind][::4096])

print(flush=True)
for line in sys.stdin:
    word, kind, *size = line.split()
    if word == "take":
        take(kind, int(size[0]))
    elif kind == "file":
        held.pop(kind).close()
    else:
        del held[kind]
    print(flush=True)
"""


class Holder:
    """A child process that allocates and frees memory on command."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.pid = child.pid
        self._wait()

    def do(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self._child.stdout is not None
        assert self._child.stdout.readline()

    def end(self) -> None:
        """Let the child exit without reaping it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        assert not self._child.stdout.read()


@contextmanager
def holder(folder: Path) -> Iterator[Holder]:
    file = folder / "mapped"
    file.write_bytes(bytes(40 * MB))
    words = [sys.executable, "-c", STEPS, str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield Holder(child)


def figures(resident: int, proportional: int | None = None, anonymous: int | None = None) -> ProcessMemory:
    return ProcessMemory(resident, proportional, anonymous)


def test_highest_takes_the_maximum_of_each_kind_and_ignores_missing_ones() -> None:
    assert highest(figures(5, None, 3), figures(4, 2, 9)) == figures(5, 2, 9)
    assert highest(figures(5), figures(6)) == figures(6)


def test_course_keeps_every_peak_however_long_it_gets() -> None:
    course = Course()
    for step in range(10_000):
        course.add(0.02 * step, figures(7000 if step == 6543 else 100 + step % 7, None, step % 50))
    course.raise_resident(9000)
    assert course.peak == figures(9000, None, 49)
    assert MOST_SAMPLES // 4 < len(course.samples) <= MOST_SAMPLES
    assert max(sample.memory.resident for sample in course.samples) == 7000
    times = [sample.seconds for sample in course.samples]
    assert times == sorted(times)
    assert times[0] == 0
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= 2 * min(gaps) + 1e-9


@NEEDS_SMAPS
def test_counters_agree_with_the_page_totals() -> None:
    by_counters, by_pages = Counters(os.getpid()).read(), memory_now()
    assert by_counters is not None
    assert by_pages is not None
    assert by_pages.anonymous is not None
    assert by_counters.resident == pytest.approx(by_pages.resident, abs=APART_NBYTES)
    assert by_counters.anonymous == pytest.approx(by_pages.anonymous, abs=APART_NBYTES)


@pytest.mark.memory
@NEEDS_SMAPS
def test_sampler_measures_what_a_process_takes_and_keeps_the_peak_when_it_is_freed(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        before = memory_of(process.pid)
        with PeakSampler(process.pid) as sampler:
            process.do(f"take anonymous {60 * MB}")
            first = sampler.peak
            process.do("drop anonymous")
            process.do(f"take file {40 * MB}")
            process.do(f"take anonymous {20 * MB}")
            process.do("drop file")
            process.do("drop anonymous")
            second = sampler.peak
        after = memory_of(process.pid)
    assert before is not None
    assert first is not None
    assert second is not None
    assert after is not None
    assert first.resident - before.resident == pytest.approx(60 * MB, abs=APART_NBYTES)
    assert first.anonymous - before.anonymous == pytest.approx(60 * MB, abs=APART_NBYTES)  # type: ignore[operator]
    assert second.resident - before.resident == pytest.approx(60 * MB, abs=APART_NBYTES)  # 40 and 20 at once
    assert after.resident - before.resident == pytest.approx(0, abs=APART_NBYTES)
    assert sampler.peak == second


@pytest.mark.memory
@NEEDS_SMAPS
def test_sampler_misses_no_short_peak_of_resident_pages(tmp_path: Path) -> None:
    with holder(tmp_path) as process, PeakSampler(process.pid) as sampler:
        before = memory_of(process.pid)
        for _ in range(5):
            process.do(f"take file {40 * MB}")
            process.do("drop file")
    assert before is not None
    assert sampler.peak is not None
    assert sampler.peak.resident - before.resident == pytest.approx(40 * MB, abs=APART_NBYTES)


@pytest.mark.memory
@NEEDS_SMAPS
def test_sampler_ignores_peaks_from_before_it_started(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.do(f"take anonymous {60 * MB}")
        process.do("drop anonymous")
        before = memory_of(process.pid)
        with PeakSampler(process.pid) as sampler:
            process.do(f"take file {30 * MB}")
    assert before is not None
    assert sampler.peak is not None
    assert sampler.peak.resident - before.resident == pytest.approx(30 * MB, abs=APART_NBYTES)
    assert sampler.peak.anonymous - before.anonymous == pytest.approx(0, abs=APART_NBYTES)  # type: ignore[operator]
    assert sampler.samples[-1].memory.resident <= sampler.peak.resident


@NEEDS_SMAPS
def test_sampler_keeps_the_peaks_of_a_process_that_ended(tmp_path: Path) -> None:
    with holder(tmp_path) as process, PeakSampler(process.pid) as sampler:
        before = sampler.peak
        process.end()
        assert sampler.peak == before
    assert before is not None
    assert sampler.peak == before
    assert not sampler.why_not


def test_sampler_has_no_figures_of_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    with PeakSampler(ended.pid) as sampler:
        assert sampler.peak is None
    assert sampler.why_not
    assert sampler.samples == ()


@NEEDS_SMAPS
def test_sampler_that_is_killed_keeps_its_figures() -> None:
    with PeakSampler() as sampler:
        before = sampler.peak
        assert sampler._child is not None
        os.kill(sampler._child.pid, signal.SIGKILL)
        sampler._child.wait()
        assert sampler.peak == before is not None
    assert sampler.why_not == "the sampler ended"


def test_sampler_reaps_its_child() -> None:
    with PeakSampler() as sampler:
        child = sampler._child
        assert child is not None
        assert child.poll() is None
    assert child.returncode is not None
    sampler.close()


PARENT = """
import os, signal
from edgedecode.memory.peaks import PeakSampler
with PeakSampler() as sampler:
    print(sampler._child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@NEEDS_SMAPS
def test_sampler_child_ends_with_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    child = Path("/proc") / done.stdout.strip()
    deadline = time.monotonic() + 30
    while child.exists() and "\nState:\tZ" not in (child / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.exists() or "\nState:\tZ" in (child / "status").read_text()  # orphans may stay zombies here


def test_sampler_uses_psutil_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    class AccessDenied(Exception):
        pass

    class Process:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=7 * MB)

        def memory_full_info(self) -> SimpleNamespace:
            if self.pid != os.getpid():
                raise AccessDenied
            return SimpleNamespace(uss=3 * MB)

    fake = SimpleNamespace(Process=Process, AccessDenied=AccessDenied, Error=(OSError,))
    monkeypatch.setitem(sys.modules, "psutil", fake)
    monkeypatch.setattr(process_memory.sys, "platform", "darwin")
    assert memory_now() == figures(7 * MB, None, 3 * MB)
    assert memory_of(1) == figures(7 * MB)
    assert Counters(1).read() == figures(7 * MB)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert memory_now() is None
