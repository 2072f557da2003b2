"""Runs generated code against its tests in two child processes, within limits of time, memory and files.

The verdict is made by the process with the tests, which never executes the answer: see `sandbox_child.py` for the
division, and `sandbox_walls.py` for what keeps both inside.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from edgedecode.errors import CapabilityError

__all__ = ["CodeLimits", "CodeVerdict", "check_sandbox", "run_tests"]

_CHILD = Path(__file__).with_name("sandbox_child.py")
_REFUSED = 77
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables without which some interpreters do not start."""
_LONGEST_REPORT = 1 << 14
_STARTING_SECONDS = 5
"""Most that is added to the time limit: two interpreters start, on a machine that may be busy."""
_ACTS = {
    "os.fork": "start a process",
    "os.forkpty": "start a process",
    "os.system": "start a process",
    "os.posix_spawn": "start a process",
    "os.exec": "start a process",
    "subprocess.Popen": "start a process",
    "_thread.start_new_thread": "start a thread",
    "_thread.start_joinable_thread": "start a thread",
    "os.kill": "stop another process",
    "os.killpg": "stop another process",
    "open": "open a file outside its folder, or too many",
    "os.mkdir": "create a folder outside its own, or too many",
}
_SIGNALS = {
    "SIGXCPU": "it used more processor time than allowed",
    "SIGKILL": "it used more processor time or memory than allowed",
    "SIGSYS": "it tried to start a process or thread, use the network or reach another process: refused",
    "SIGSEGV": "it crashed the interpreter",
    "SIGABRT": "it crashed the interpreter",
}


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """Limits of one run. seconds: of processor time; of real time it may take up to twice that, at most 5 more."""

    seconds: int = 10
    memory_nbytes: int = 512 << 20
    file_nbytes: int = 1 << 20
    open_files: int = 32


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """Whether all tests passed, and why not."""

    passed: bool
    reason: str = ""


def check_sandbox() -> None:
    """Raise CapabilityError where generated code cannot be run: a right answer would count as wrong."""
    _check_system()
    found = run_tests("def f(x):\n    return x", "assert f(1) == 1", names=["f"])
    if not found.passed:
        raise CapabilityError(f"code tasks cannot be run here: in the sandbox, {found.reason}")


def _check_system() -> None:
    if os.name != "posix":
        raise CapabilityError("code tasks are not run on this system, only on Linux and macOS: use other tasks")


def run_tests(
    program: str, tests: str, *, names: Sequence[str], prelude: str = "", limits: CodeLimits | None = None
) -> CodeVerdict:
    """Run `tests` against the functions `names` of `program`. Raises CapabilityError on Windows.

    The first name is passed to the tests' `check` if they define one. prelude: trusted code that the tests may use,
    such as the imports of the prompt.
    """
    _check_system()
    limits = limits or CodeLimits()
    with ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="edgedecode-", ignore_cleanup_errors=True))
        requests, replies = _Pipe(undo), _Pipe(undo)
        job: dict[str, object] = {"limits": asdict(limits), "names": list(names)}
        answer_job = {**job, "program": program, "requests": requests.reading, "replies": replies.writing}
        tests_job = {**job, "tests": tests, "prelude": prelude}
        tests_job |= {"requests": requests.writing, "replies": replies.reading}
        answer = _started("answer", answer_job, Path(folder, "answer"), keeps=(requests.reading, replies.writing))
        undo.callback(_stop, answer)
        judge = _started("tests", tests_job, Path(folder, "tests"), keeps=(requests.writing, replies.reading))
        undo.callback(_stop, judge)
        for end in (requests, replies):
            end.close()
        report = _report(judge, seconds=limits.seconds + min(limits.seconds, _STARTING_SECONDS))
        if report is None:
            return CodeVerdict(False, f"it took longer than {limits.seconds} seconds")
        return _verdict(report, answer)


def _verdict(report: bytes, answer: subprocess.Popen[bytes]) -> CodeVerdict:
    """Read the report of the process with the tests."""
    try:
        value = json.loads(report.splitlines()[0])
    except (IndexError, ValueError):
        return CodeVerdict(False, "the process with the tests ended before they were over")
    if value.get("passed") is True:
        return CodeVerdict(True)
    if "refused" in value:
        return CodeVerdict(False, f"the tests tried to {_ACTS.get(value['refused'], value['refused'])}: refused")
    if "ended" in value:
        return CodeVerdict(False, _ending(str(value["ended"]), answer))
    return CodeVerdict(False, str(value.get("reason", "")))


def _ending(refused: str, answer: subprocess.Popen[bytes]) -> str:
    """Return why the process with the answer ended before the tests were over."""
    if refused:
        return f"it tried to {_ACTS.get(refused, f'do what is refused ({refused})')}: refused"
    try:
        status = answer.wait(1)
    except subprocess.TimeoutExpired:
        return "it closed the connection to the tests"
    if status == _REFUSED:
        return "it tried what is refused"
    if status < 0:
        name = signal.Signals(-status).name
        return _SIGNALS.get(name, f"it was ended by {name}")
    return "it ended before the tests were over"


class _Pipe:
    """A pipe whose ends are inherited by the two processes."""

    def __init__(self, undo: ExitStack) -> None:
        self.reading, self.writing = os.pipe()
        self._open = True
        undo.callback(self.close)

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.reading)
            os.close(self.writing)


def _started(role: str, job: dict[str, object], folder: Path, *, keeps: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a role in a new session, with a folder of its own and nearly no environment."""
    folder.mkdir()
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps({**job, "folder": str(folder.resolve())}).encode())
        file.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_CHILD), role],
            stdin=file,
            stdout=subprocess.PIPE if role == "tests" else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            pass_fds=keeps,
            start_new_session=True,
        )


def _report(judge: subprocess.Popen[bytes], *, seconds: float) -> bytes | None:
    """Return what the process reports until it closes its pipe; None: it did not in time."""
    assert judge.stdout is not None
    end, found = monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(judge.stdout, selectors.EVENT_READ)
        while (left := end - monotonic()) > 0 and len(found) < _LONGEST_REPORT:
            if selector.select(left):
                data = os.read(judge.stdout.fileno(), _LONGEST_REPORT)
                found += data
                if not data or b"\n" in data:
                    return found
    return None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the process and its whole group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
