"""Ctrl-C waits for the end of a round; a second press does not wait."""

import os
import signal
from collections.abc import Iterator

import pytest

from edgedecode import Chunk
from edgedecode.apps.interrupts import until_interrupted

SOURCES = ("target", "model", "target", "model", "target", "target")


class Chunks:
    """A stream of chunks; Ctrl-C is pressed `times` times before chunk number `press_in`."""

    def __init__(self, *, press_in: int, times: int = 1) -> None:
        self.press_in, self.times = press_in, times
        self.closed = False

    def __call__(self) -> Iterator[Chunk]:
        try:
            for number, source in enumerate(SOURCES):
                if number == self.press_in:
                    for _ in range(self.times):
                        os.kill(os.getpid(), signal.SIGINT)
                yield Chunk(str(number), (number,), source)
        finally:
            self.closed = True


def collect(chunks: Chunks) -> str:
    seen = ""
    try:
        for chunk in until_interrupted(chunks()):
            seen += chunk.text
        pytest.fail("nothing interrupted")
    except KeyboardInterrupt:
        pass
    assert chunks.closed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return seen


@pytest.mark.parametrize(("press_in", "seen"), [(1, "012"), (2, "012"), (3, "01234"), (5, "012345")])
def test_until_interrupted_finishes_the_round_first(press_in: int, seen: str) -> None:
    assert collect(Chunks(press_in=press_in)) == seen


def test_until_interrupted_stops_at_once_during_prefill() -> None:
    assert collect(Chunks(press_in=0)) == ""


def test_until_interrupted_stops_at_once_on_the_second_press() -> None:
    assert collect(Chunks(press_in=3, times=2)) == "012"


def test_until_interrupted_keeps_ignoring_sigint_if_the_process_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert len(list(until_interrupted(Chunks(press_in=2)()))) == len(SOURCES)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
