"""The verbs in child processes on a real pack, as a shell sees them: bad input, closed pipes and Ctrl-C."""

import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextvars import copy_context
from pathlib import Path

import pytest

from edgedecode.apps.terminal import progress, show_notices
from edgedecode.cli import main
from edgedecode.user_notices import NOTICES, work

from .conftest import Run

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
WORDS = ["-p", "Tell me a story about a fox.", "--temp", "0"]


def refused(done: subprocess.CompletedProcess[bytes], *, code: int = 1) -> str:
    """Check the format of a refusal, and return its message."""
    err = done.stderr.decode()
    assert done.returncode == code, err
    assert "Traceback" not in err
    if code == 1:
        assert err.startswith("edgedecode: ")
        assert err.count("\n") == 1, err
    return err


def slow(*words: str, streams: int | None = None) -> subprocess.Popen[bytes]:
    """Start the slow command line with output to pipes, or with all streams on `streams`."""
    pipe = subprocess.PIPE if streams is None else streams
    command = [sys.executable, "-c", SLOW, *words]
    return subprocess.Popen(command, stdin=streams, stdout=pipe, stderr=pipe, start_new_session=True)


@pytest.fixture
def run_here(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """`run` in this process, for refusals: they leave no state behind."""

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        try:
            code = main(list(words))
        except SystemExit as leaving:
            code = int(str(leaving.code))
        return subprocess.CompletedProcess(words, code, *capfdbinary.readouterr())

    return run


def generate(run: Run, pack: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return run("generate", "-m", str(pack), *WORDS, *words)


def test_generate_ends_with_one_json_line(run: Run, pack: Path) -> None:
    done = generate(run, pack, "--max-tokens", "32", "--json", "--drafter", "model", "--draft-max", "2")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout.splitlines()[-1])
    assert len(value["tokens"]) == 32
    assert value["stats"]["mode"] == "model"
    assert value["stats"]["accepted"] > 0
    assert value["stats"]["planned_nbytes"] > 0


def test_devices_lists_the_cpu(run: Run) -> None:
    done = run("devices", "--json")
    assert done.returncode == 0, done.stderr
    devices = json.loads(done.stdout.splitlines()[-1])["devices"]
    assert ("onnx", "cpu", True) in [(d["runtime"], d["provider"], d["available"]) for d in devices]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--runtime", "abacus"], "no runtime 'abacus'"),
        (["--drafter", "psychic"], "no drafter 'psychic'"),
        (["--adapter", "formal"], "the pack has no adapters"),
        (["--provider", "quantum"], "provider"),
        (["--temp", "-1"], "temperature -1.0 is out of range"),
        (["--top-p", "2"], "top_p 2.0 is out of range"),
        (["--min-p", "1.5"], "min_p 1.5 is out of range"),
        (["--repeat-penalty", "0"], "repetition_penalty 0.0 is out of range"),
        (["--ctx-size", "1"], "out of range"),
        (["--ctx-size", "4"], "prompt is too long"),
        (["--draft-max", "99"], "draft length 99 is out of range"),
        (["--memory", "lots"], "is not a size"),
    ],
)
def test_generate_refuses_unusable_values_in_one_line(
    words: list[str], expected: str, run_here: Run, pack: Path
) -> None:
    assert expected in refused(generate(run_here, pack, *words))


def test_generate_with_too_small_a_budget_shows_the_table(run_here: Run, pack: Path) -> None:
    done = generate(run_here, pack, "--memory", "1MB")
    err = done.stderr.decode()
    assert done.returncode == 1
    assert "Traceback" not in err
    assert "budget" in err
    assert err.count("\n") > 2


@pytest.mark.parametrize(
    "words",
    [
        ["-p", "x", "--file", "y"],
        ["-p", "x", "--system", "s", "--raw"],
        ["-p", "x", "--temp", "warm"],
        ["-p", "x", "--seed", "1.5"],
        ["-p", "x", "--rule", "hope"],
        ["-p", "x", "--temperature", "1"],
    ],
)
def test_generate_usage_error_exits_with_2(words: list[str], run_here: Run) -> None:
    assert "usage:" in refused(run_here("generate", *words), code=2)


def test_the_bare_command_says_where_to_begin(run_here: Run) -> None:
    found = run_here()
    assert found.returncode == 0
    out = found.stdout.decode() if isinstance(found.stdout, bytes) else found.stdout
    for words in ("edgedecode run", "edgedecode chat", "edgedecode --help"):
        assert words in out


REFUSALS = {
    "--debug": (2, "the following arguments are required: VERB"),
    "generate a b": (2, "put quotes around a text of several words"),
    "generate a -p b": (2, "unrecognized arguments: a"),
    "generate --file FOLDER": (1, "Is a directory"),
    "generate --file EMPTY": (1, "the prompt is empty"),
    "generate a -m FOLDER": (1, "is not a pack"),
    "generate a -m EMPTY": (1, "is not a folder"),
    "generate a --memory 1_000MB": (1, "is not a size"),
    "generate a -t 9999": (1, "9999 threads are out of range"),
    "generate a -m ": (1, "the name of the pack is empty"),
    "generate a -n 0": (2, "'0' is too small: the minimum is 1"),
    "generate a -t 0": (2, "'0' is too small: the minimum is 1"),
    "generate a -c 0": (2, "'0' is too small: the minimum is 1"),
    "generate a --draft-max -1": (2, "'-1' is too small: the minimum is 0"),
    "generate a --top-k -3": (2, "'-3' is too small: the minimum is 0"),
    "generate a --seed -2": (2, "'-2' is too small: the minimum is 0"),
    "chat -n 0": (2, "'0' is too small: the minimum is 1"),
    "bench --per-family 0": (2, "'0' is too small: the minimum is 1"),
    "generate a --drafter=": (1, "there is no drafter ''"),
    "chat two words": (2, "edgedecode chat: unrecognized arguments: two words"),
    "show a b": (2, "edgedecode show: unrecognized arguments: a b"),
    "show LATIN": (1, "is not a folder"),
    "cache clear": (2, "say what to delete"),
    "eval": (2, "choose what to evaluate: --equality, --kv-types, or both"),
    "eval --equality --prompts FOLDER": (1, "Is a directory"),
    "eval --equality --prompts EMPTY": (1, "holds no prompts"),
    "bench --families ,": (2, "give at least one name"),
    "bench --lengths 1,,2": (2, "'' is not a whole number"),
    "bench --lengths 99": (2, "'99' is too large: the maximum is 64"),
    "bench --temp nan": (2, "'nan' is not a number"),
    "bench --prompts LATIN": (1, "is not valid UTF-8"),
    "trim FOLDER": (1, "is not a pack"),
    "trim FOLDER --remove --prompts 5": (2, "leave out --prompts"),
    "import --target FOLDER --out x": (1, "is a folder: give the GGUF file in it"),
    "import --target EMPTY --out x": (1, "is empty"),
    "export --target FOLDER": (2, "required: --out"),
}


@pytest.mark.parametrize("line", REFUSALS)
def test_verbs_refuse_bad_arguments_in_one_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error prints two lines. Runs in this process, since no case opens an engine."""
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "EMPTY").write_bytes(b"")
    (tmp_path / "LATIN").write_bytes(b"\xff\xfe")
    words = [str(tmp_path / word) if word.isupper() else word for word in line.split(" ")] if line else []
    code, expected = REFUSALS[line]
    try:
        found: object = main(words)
    except SystemExit as leaving:
        found = leaving.code
    err = capsys.readouterr().err
    assert (found, err.count("\n")) == (code, code), err
    assert expected in err


def test_verbs_refuse_invalid_utf8(run: Run, pack: Path, tmp_path: Path) -> None:
    done = run("generate", "-m", str(pack), "-p", "-", stdin=b"caf\xe9 latin")
    assert "standard input is not valid UTF-8: byte 0xe9 at offset 3" in refused(done)
    file = tmp_path / "latin"
    file.write_bytes(b"\xff\xfe")
    assert "is not valid UTF-8" in refused(run("generate", "-m", str(pack), "--file", str(file)))
    assert "is not valid UTF-8" in refused(run("chat", "-m", str(pack), stdin=b"\xff\n"))
    if sys.platform == "linux":
        assert "the prompt is not valid UTF-8" in refused(run("generate", "-m", str(pack), "-p", os.fsdecode(b"\xe9")))


def test_generate_refuses_unreadable_files(run_here: Run, pack: Path, tmp_path: Path) -> None:
    assert "No such file" in refused(run_here("generate", "-m", str(pack), "--file", str(tmp_path / "none")))
    assert "directory" in refused(run_here("generate", "-m", str(pack), "--file", str(tmp_path)))
    assert "is not a pack" in refused(run_here("generate", "-m", str(tmp_path), "-p", "x"))
    assert "no folder" in refused(run_here("generate", "-m", str(tmp_path / "none"), "-p", "x"))


def test_generate_refuses_a_damaged_pack(run_here: Run, pack: Path, tmp_path: Path) -> None:
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    manifest = copy / "edgedecode.json"
    text = manifest.read_text()
    for old, new, expected in (
        ('"version": 1', '"version": 99', "upgrade edgedecode"),
        ('"target/base.onnx"', '"../base.onnx"', "the manifest names the file"),
        ('"tokenizer.json"', '"/etc/passwd"', "the manifest names the file"),
        ("{", "", "is not JSON"),
    ):
        manifest.write_text(text.replace(old, new))
        assert expected in refused(run_here("generate", "-m", str(copy), "-p", "x"))
    manifest.write_text(text)
    weights = copy / "target" / "weights.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1])
    assert "weights.bin" in refused(run_here("generate", "-m", str(copy), "-p", "x"))
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "weights.bin" in refused(run_here("generate", "-m", str(copy), "-p", "x", "--verify"))
    weights.unlink()
    assert "weights.bin" in refused(run_here("generate", "-m", str(copy), "-p", "x"))


def test_debug_shows_the_traceback(run: Run, tmp_path: Path) -> None:
    assert b"Traceback" in run("generate", "-m", str(tmp_path), "-p", "x", "--debug").stderr


@posix
def test_generate_ends_quietly_on_a_closed_pipe() -> None:
    child = slow("generate", "-p", "hello", "-n", "400")
    assert child.stdout is not None
    assert child.stderr is not None
    assert len(child.stdout.read(5)) == 5
    child.stdout.close()
    assert child.wait(timeout=60) == 128 + signal.SIGPIPE
    assert child.stderr.read() == b""
    child.stderr.close()


@posix
def test_generate_reports_a_stdout_closed_before_the_start(pack: Path) -> None:
    words = [sys.executable, "-m", "edgedecode.cli", "generate", "-m", str(pack), "-p", "hello", "-n", "4"]
    child = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], capture_output=True, timeout=60, check=False)
    assert child.returncode == 1
    assert child.stderr == b"edgedecode: standard output is closed: the result cannot be printed\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_generate_reports_a_full_disk_in_one_line(pack: Path, unbuffered: str) -> None:
    words = [sys.executable, "-m", "edgedecode.cli", "generate", "-m", str(pack), "-p", "hello", "-n", "4"]
    setting = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        child = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, env=setting)
    assert child.returncode == 1
    assert child.stderr == b"edgedecode: standard output cannot be written: No space left on device\n"


@posix
def test_ctrl_c_keeps_the_partial_text() -> None:
    child = slow("generate", "-p", "hello", "-n", "400")
    assert child.stdout is not None
    first = child.stdout.read(5)
    child.send_signal(signal.SIGINT)
    rest, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == b"edgedecode: interrupted\n"
    assert (first + rest).endswith(b"\n")


@posix
def test_ctrl_c_still_prints_the_json_line() -> None:
    child = slow("generate", "-p", "hello", "-n", "400", "--json", "--debug-started")
    assert child.stderr is not None
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


def test_chat_answers_piped_lines(run: Run, pack: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    lines = f"What is the capital of France?\n/save {saved}\n/stats\n/quit\nnever read\n"
    done = run("chat", "-m", str(pack), "--temp", "0", stdin=lines.encode())
    assert done.returncode == 0, done.stderr
    assert b"Paris" in done.stdout
    assert b"tok/s" in done.stderr
    assert [message["role"] for message in json.loads(saved.read_text())["messages"]] == ["user", "assistant"]


@posix
@pytest.mark.serial
def test_ctrl_c_in_chat_stops_the_answer_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # this terminal does not answer where its cursor is
    terminal, end = pty.openpty()
    child = slow("chat", "--color", "never", "-n", "60", streams=end)
    os.close(end)

    def until(text: bytes) -> None:
        """Read until `text` has appeared; later output of the same read is dropped."""
        seen = b""
        deadline = time.monotonic() + 60
        while text not in seen:
            ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, seen
            seen += os.read(terminal, 4096)

    try:
        until(b"Ctrl-D quits")
        time.sleep(0.5)  # an editor handles a signal only while it waits
        os.write(terminal, b"hello\r")
        until(b"hello")
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        until(b"interrupted")
        time.sleep(0.5)
        os.write(terminal, b"and now\r")
        until(b"stopped at the token limit")
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        until(b"Ctrl-D or /quit)")
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20) == 0
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


def test_progress_off_a_terminal_prints_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Work that ends before the first line is due prints none. The clock is read on each `advance`."""
    seconds = iter(range(0, 1000, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    with progress("measuring", 40) as advance:
        for _ in range(8):
            advance()
    assert capsys.readouterr().err.splitlines() == [
        "edgedecode: measuring 8%, 6 s",
        "edgedecode: measuring 15%, 12 s",
    ]
    with progress("short", 2) as advance:
        advance(2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_work_shows_a_bar_only_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    logger = logging.getLogger(NOTICES)
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))  # restored after the test
    monkeypatch.setattr(logger, "handlers", [])

    def long() -> None:
        show_notices()
        with work("preparing weights, MB", 40) as advance:
            advance(30)

    copy_context().run(long)
    printed = capsys.readouterr().err
    assert ("preparing weights, MB" in printed) == terminal
    assert ("30/40" in printed) == terminal
