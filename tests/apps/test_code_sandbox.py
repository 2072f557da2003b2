"""Generated code is contained and judged: attacks of many kinds, verdicts that cannot be faked, kernel walls."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from edgedecode.apps.tasks import sandbox_walls
from edgedecode.apps.tasks.code_sandbox import CodeLimits, CodeVerdict, run_tests
from edgedecode.apps.tasks.sandbox_child import decoded, encoded

pytestmark = pytest.mark.skipif(os.name != "posix", reason="code is not run on this system")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's walls are Linux's")
SHORT = CodeLimits(seconds=1, memory_nbytes=256 << 20)
TESTS = "def check(candidate):\n    assert candidate(2) == 3\n    assert candidate(5) == 6\n"


def verdict(program: str, tests: str = TESTS, *, limits: CodeLimits = SHORT) -> CodeVerdict:
    return run_tests(textwrap.dedent(program), tests, names=["f"], limits=limits)


def test_right_and_wrong_answers() -> None:
    assert verdict("def f(x):\n    return x + 1") == CodeVerdict(True)
    assert verdict("def f(x):\n    return x") == CodeVerdict(False, "a test failed: line 2 of the tests")
    assert verdict("def f(x):\n    raise ValueError('no')") == CodeVerdict(False, "ValueError: no")
    assert verdict("def g(x):\n    return x + 1") == CodeVerdict(False, "NameError: the answer does not define f")
    assert verdict("def f(x) return x").reason.startswith("SyntaxError")
    assert verdict("import nothing_like_it").reason.startswith("ModuleNotFoundError")
    assert verdict("def f(x):\n    return x + 1", "assert f(1) == 2\nassert f(1) == 3").reason.endswith(
        "line 2 of the tests"
    )


def test_standard_modules_work() -> None:
    program = """
        import collections, dataclasses, datetime, decimal, enum, functools, hashlib, heapq, itertools, json, math
        import random, re, statistics, string, typing
        Point = collections.namedtuple("Point", "x y", defaults=[1])
        @dataclasses.dataclass
        class Step:
            size: int = 1
        @functools.lru_cache
        def f(x: int) -> typing.Optional[int]:
            with open("own.txt", "w") as file:
                file.write("text")
            assert open("own.txt").read() == "text"
            print("on standard output")
            return Point(x).x + Step().size
    """
    assert verdict(program) == CodeVerdict(True)


ENDLESS = {
    "loops": "def f(x):\n    while True:\n        pass",
    "loops while it is loaded": "while True:\n    pass",
    "loops and catches everything": """
        def f(x):
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
        """,
    "recurses": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x)",
    "sleeps": "import time\ndef f(x):\n    time.sleep(100)",
    "ignores signals": """
        import signal, time
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        def f(x):
            while True:
                pass
        """,
}

PLAIN = {
    "fills the disk with one file": (
        "def f(x):\n    open('big', 'wb').write(bytes(1 << 26))\n    return x + 1",
        "too large",
    ),
    "fills the disk with many files": (
        "def f(x):\n    for i in range(10**6):\n        open(str(i), 'w').write('a' * 1000)\n    return x + 1",
        "too many",
    ),
    "makes many folders": ("import os\ndef f(x):\n    for i in range(10**6):\n        os.mkdir(str(i))", "too many"),
    "opens many files": (
        "files = []\ndef f(x):\n    while True:\n        files.append(open(__import__('os').__file__))",
        "open files",
    ),
    "fills the memory": ("def f(x):\n    return [bytes(1 << 20) for _ in range(10**6)]", "MemoryError"),
    "returns gigabytes": ("def f(x):\n    return 'a' * (1 << 25)", "too large"),
    "returns an endless iterator": ("import itertools\ndef f(x):\n    return itertools.repeat('a' * 10**4)", "Error"),
    "prints gigabytes": (
        "def f(x):\n    for _ in range(20000):\n        print('a' * 100000)\n    return x",
        "a test failed",
    ),
    "exits": ("import sys\ndef f(x):\n    sys.exit(0)", "SystemExit: 0"),
    "exits at once": ("import os\ndef f(x):\n    os._exit(0)", "ended before the tests were over"),
    "exits while it is loaded": ("print('passed')\nimport os\nos._exit(0)", "ended before the tests were over"),
    "crashes": ("import os\ndef f(x):\n    os.abort()", "crashed|ended"),
    "forks": ("import os\ndef f(x):\n    while True:\n        os.fork()", "start a process"),
    "starts a program": ("import os\ndef f(x):\n    os.system('true')\n    return x + 1", "start a process"),
    "becomes a program": ("import os\ndef f(x):\n    os.execv('/bin/true', ['true'])", "start a process"),
    "spawns": ("import os\ndef f(x):\n    os.posix_spawn('/bin/true', ['true'], {})", "start a process"),
    "imports subprocess": ("import subprocess\ndef f(x):\n    return x + 1", "no such module"),
    "imports ctypes": ("def f(x):\n    import ctypes\n    return x + 1", "no such module"),
    "imports socket": ("import socket\ndef f(x):\n    return x + 1", "no such module"),
    "imports a hidden module again": (
        "import sys\ndel sys.modules['posix']\nimport posix\ndef f(x):\n    return x + 1",
        "no such module",
    ),
    "gets removed functions back": (
        """
        import _imp, importlib.machinery
        posix = _imp.create_builtin(importlib.machinery.ModuleSpec("posix", None))
        def f(x):
            posix.mkfifo("/tmp/edgedecode-was-here")
            return x + 1
        """,
        "PermissionError|AttributeError|OSError" if sys.platform == "linux" else "",
    ),
    "looks for ctypes among the classes": (
        """
        def f(x):
            todo, seen = [object], set()
            while todo:
                for kind in type.__subclasses__(todo.pop()):
                    if kind not in seen:
                        seen.add(kind)
                        todo.append(kind)
            for kind in seen:
                if kind.__name__ in ("CDLL", "LibraryLoader"):
                    kind(None)
            return x
        """,
        "refused|a test failed",
    ),
    "starts threads": (
        "import threading\ndef f(x):\n    threading.Thread(target=print).start()\n    return x + 1",
        "thread",
    ),
    "kills its parent": (
        "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return x + 1",
        "stop another process",
    ),
    "kills its group": ("import os\ndef f(x):\n    os.killpg(0, 9)\n    return x + 1", "stop another process"),
    "writes outside": ("def f(x):\n    open('/tmp/edgedecode-was-here', 'w')\n    return x + 1", "outside its folder"),
    "writes above its folder": ("def f(x):\n    open('../was-here', 'w')\n    return x + 1", "outside its folder"),
    "writes with a changing path": (
        """
        import os
        class Path:
            def __fspath__(self):
                return "/tmp/edgedecode-was-here"
        def f(x):
            os.open(Path(), os.O_WRONLY | os.O_CREAT)
            return x + 1
        """,
        "outside its folder",
    ),
    "leaves its folder": ("import os\ndef f(x):\n    os.chdir('/')\n    return x + 1", "refused"),
    "links out of its folder": ("import os\ndef f(x):\n    os.symlink('/etc', 'etc')\n    return x + 1", "refused"),
    "removes files": ("import os\ndef f(x):\n    os.remove('/tmp/edgedecode-is-not-here')", "refused"),
    "reads files": ("def f(x):\n    open('/etc/passwd').read()\n    return x + 1", "outside its folder"),
    "reads its memory": ("def f(x):\n    open('/proc/self/mem', 'rb')\n    return x + 1", "outside its folder"),
    "looks for objects": ("import gc\ndef f(x):\n    gc.get_objects()\n    return x + 1", "refused"),
    "builds code": ("def f(x):\n    f.__code__ = f.__code__.replace(co_code=b'aa')\n    return x + 1", "refused"),
    "catches the refusal": (
        "import os\ndef f(x):\n    try:\n        os.fork()\n    finally:\n        return x + 1",
        "start a process",
    ),
    "raises the limits": (
        "import sys\ndef f(x):\n    sys.modules['resource'].setrlimit(0, (-1, -1))\n    return x + 1",
        "refused",
    ),
}


@pytest.mark.parametrize("attack", ENDLESS)
def test_endless_code_is_ended(attack: str) -> None:
    started = time.monotonic()
    found = verdict(ENDLESS[attack])
    assert not found.passed
    assert "processor time" in found.reason or "longer than" in found.reason or "crashed" in found.reason
    assert time.monotonic() - started < 8


@pytest.mark.parametrize("attack", PLAIN)
def test_attack_is_contained_and_fails(attack: str, tmp_path: Path) -> None:
    program, reason = PLAIN[attack]
    found = verdict(program, limits=CodeLimits(seconds=4, memory_nbytes=256 << 20))
    assert not found.passed
    assert any(part in found.reason for part in reason.split("|")), found.reason
    assert not Path("/tmp/edgedecode-was-here").exists()


FAKES = {
    "prints it": "print('{\"passed\": true}')\ndef f(x):\n    return x",
    "writes it to every descriptor": """
        import os
        for number in range(64):
            try:
                os.write(number, b'{"passed": true}\\n' * 3)
            except OSError:
                pass
        def f(x):
            return x
        """,
    "replies in advance": """
        import os
        for number in range(64):
            try:
                os.write(number, b'{"value": 3}\\n{"value": 7}\\n')
            except OSError:
                pass
        def f(x):
            return x
        """,
    "always equal": """
        class Equal(int):
            def __eq__(self, other):
                return True
        def f(x):
            return Equal(0)
        """,
    "replaces assert's error": "import builtins\nbuiltins.AssertionError = ValueError\ndef f(x):\n    return x",
    "changes the harness": """
        import sys
        frame = sys._getframe()
        while frame:
            frame.f_globals["encoded"] = lambda value: {"passed": True}
            frame.f_locals.clear()
            frame = frame.f_back
        def f(x):
            return x
        """,
    "closes everything": "import os\nos.closerange(0, 64)\ndef f(x):\n    return x",
    "catches the end": "import atexit\natexit.register(print, 'passed')\ndef f(x):\n    raise SystemExit",
}


@pytest.mark.parametrize("fake", FAKES)
def test_verdict_cannot_be_faked(fake: str) -> None:
    assert not verdict(FAKES[fake]).passed


def test_tests_that_misbehave_fail() -> None:
    good = "def f(x):\n    return x + 1"
    assert verdict(good, "import os\nos.fork()").reason == "the tests tried to start a process: refused"
    assert verdict(good, "import os\nos._exit(0)").reason == "the process with the tests ended before they were over"
    assert "longer than 1 seconds" in verdict(good, "import time\ntime.sleep(60)").reason
    assert verdict(good, "def check(candidate:").reason.startswith("SyntaxError")


def test_nothing_is_left_behind() -> None:
    files = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for program in ("def f(x):\n    return x + 1", "import os\nos._exit(1)"):
        verdict(program)
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == files
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the time limit ends it")
def test_a_killed_run_leaves_no_process_behind() -> None:
    sleeper = "import time\ndef f(x):\n    time.sleep(600)"
    call = f"run_tests({sleeper!r}, 'assert f(1) == 1', names=['f'])"
    code = f"from edgedecode.apps.tasks.code_sandbox import run_tests; {call}"
    deadline = time.monotonic() + 30
    with subprocess.Popen([sys.executable, "-c", code]) as run:
        confined: list[int] = []
        while len(confined) < 2 and time.monotonic() < deadline:
            facts = {process: _status(process) for process in map(int, filter(str.isdecimal, os.listdir("/proc")))}
            confined = [
                process
                for process, status in facts.items()
                if status.get("PPid") == str(run.pid) and status.get("NoNewPrivs") == "1"
            ]
        run.kill()
    assert len(confined) == 2
    alive = confined
    while alive and time.monotonic() < deadline:
        alive = [process for process in alive if _status(process).get("State", "Z")[0] not in "ZX"]
    assert not alive


def _status(process: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(10**30), 1.5, float("inf"), 2 + 3j, "text\ud800", b"\x00\xff", [], (), set(), {}, range(3)),
        *([1, (2, {3: {4, 5}})], {(1, 2): [None]}, frozenset({1}), {"dict": 1, "tuple": [2]}),
    ],
    ids=repr,
)
def test_values_survive_the_pipe(value: object) -> None:
    found = decoded(encoded(value))
    assert found == value
    assert type(found) is type(value)


def test_only_plain_values_pass() -> None:
    with pytest.raises(TypeError, match="of type object cannot be passed"):
        encoded([object()])
    assert list(decoded(encoded(iter([1, 2])))) == [1, 2]  # type: ignore[call-overload]


# -- the kernel's walls, without the audit hook ----------------------------------------------------------------------

BEHIND = """
import os, sys
walls = {"__name__": "walls"}
exec(open(sys.argv[1]).read(), walls)
folder = sys.argv[2]
os.chdir(folder)
walls["_kernel_walls"](folder)
exec(sys.argv[3])
print("not stopped")
"""


def behind_kernel_walls(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", BEHIND, str(sandbox_walls.__file__), str(folder), code]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def offered(folder: Path) -> str:
    """Return which of the kernel's walls stand here."""
    seccomp = behind_kernel_walls("os.fork()", folder).returncode == -31
    landlock = "not stopped" not in behind_kernel_walls("open('../outside', 'w')", folder).stdout
    return ("seccomp " if seccomp else "") + ("landlock" if landlock else "")


@linux
@pytest.mark.parametrize(
    "code",
    ["os.fork()", "os.execv('/bin/true', ['true'])", "import socket; socket.socket()", "os.kill(os.getppid(), 0)"],
)
def test_kernel_ends_what_starts_processes_or_uses_the_network(code: str, tmp_path: Path) -> None:
    if "seccomp" not in offered(tmp_path):
        pytest.skip("no seccomp filter here")
    found = behind_kernel_walls(code, tmp_path)
    assert (found.returncode, found.stdout) == (-31, "")


@linux
@pytest.mark.parametrize(
    "code", ["open('../outside', 'w')", "os.mkdir('../outside')", "open('/etc/passwd')", "os.mkfifo('../outside')"]
)
def test_kernel_keeps_files_inside_the_folder(code: str, tmp_path: Path) -> None:
    (folder := tmp_path / "own").mkdir()
    if "landlock" not in offered(folder):
        pytest.skip("no Landlock here")
    found = behind_kernel_walls(code, folder)
    assert found.returncode == 1
    assert "PermissionError" in found.stderr
    assert list(tmp_path.iterdir()) == [folder]
    inside = behind_kernel_walls("open('a', 'w').write('b'); os.mkdir('c'); os.rmdir('c'); os.remove('a')", folder)
    assert inside.stdout == "not stopped\n", inside.stderr
