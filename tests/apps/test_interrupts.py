"""Ctrl-C, closed pipes and full disks, in child processes and within an answer: what was written stays."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edgedecode import Chunk
from edgedecode.apps.interrupts import until_interrupted

SLOW = """
import sys, time
from edgedecode import cli
from edgedecode.apps.chat import command as chat
from edgedecode.apps.generate import command as generate
from edgedecode.pack.manifest import Generation
from edgedecode.testing import TableModel, toy_pair

forward = TableModel.forward

def slowly(self, *words, **options):
    time.sleep(0.02)
    if len(self.passes) == 4 and "--debug-started" in sys.argv:  # some tokens were generated
        print("started", file=sys.stderr, flush=True)
    return forward(self, *words, **options)

TableModel.forward = slowly
chat.open_pair = generate.open_pair = lambda arguments, **more: toy_pair(generation=Generation(end_token_ids=()))
words = [word for word in sys.argv[1:] if word != "--debug-started"]
sys.exit(cli.main([*words, "--drafter", "none", "--temp", "0"]))
"""
"""The command line on a toy pair without end token at 20 ms a forward pass: an interrupt always comes mid-answer."""


posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals, pipes and terminals")


def slow(*words: str) -> subprocess.Popen[bytes]:
    """Start the slow command line."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SLOW, *words], stdout=pipe, stderr=pipe, start_new_session=True)


@posix
def test_generate_ends_quietly_on_a_closed_pipe() -> None:
    child = slow("generate", "-p", "hello", "-n", "400")
    assert len(child.stdout.read(5)) == 5
    child.stdout.close()
    assert child.wait(timeout=60) == 128 + signal.SIGPIPE
    assert child.stderr.read() == b""
    child.stderr.close()


@posix
def test_ctrl_c_keeps_the_partial_text() -> None:
    child = slow("generate", "-p", "hello", "-n", "400")
    first = child.stdout.read(5)
    child.send_signal(signal.SIGINT)
    rest, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == b"edgedecode: interrupted\n"
    assert (first + rest).endswith(b"\n")


@posix
def test_ctrl_c_still_prints_the_json_line() -> None:
    child = slow("generate", "-p", "hello", "-n", "400", "--json", "--debug-started")
    assert child.stderr.readline() == b"started\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == b"edgedecode: interrupted\n"
    value = json.loads(out)
    assert value["finish_reason"] == "cancelled"
    assert 0 < len(value["tokens"]) < 400


@posix
def test_ctrl_c_while_loading_prints_one_line() -> None:
    """An engine's imports may turn the interrupt into an ImportError; the program must still end."""
    code = """
import os, signal, sys
from edgedecode import cli
from edgedecode.apps import verb_options

def load(*words, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))
    except KeyboardInterrupt:
        raise ImportError("initialization failed") from None

verb_options.load = load
sys.exit(cli.main(["generate", "-p", "x"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stderr == b"edgedecode: interrupted\n"
    assert done.stdout == b""


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


@pytest.mark.parametrize(
    ("press_in", "times", "seen"),
    [(0, 1, ""), (1, 1, "012"), (2, 1, "012"), (3, 1, "01234"), (5, 1, "012345"), (3, 2, "012")],
)
def test_ctrl_c_waits_for_the_end_of_a_round_after_prefill_and_a_second_press_does_not(
    press_in: int, times: int, seen: str
) -> None:
    assert collect(Chunks(press_in=press_in, times=times)) == seen


def test_until_interrupted_keeps_ignoring_sigint_if_the_process_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert len(list(until_interrupted(Chunks(press_in=2)()))) == len(SOURCES)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
