"""The command line apart from its verbs: errors become one line and an exit code."""

import os
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgedecode import __version__, cli
from edgedecode.cli import main
from edgedecode.commands import count, positive_count, real_number, seed, whole_number
from edgedecode.errors import BudgetExceeded, InputError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.text.printable import shown, shown_answer


class Verb:
    """A verb that runs the given action."""

    name = "verb"
    help = "runs the given action"

    def __init__(self, action: Callable[[Namespace], int]) -> None:
        self._action = action

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("--number", type=int, default=3)

    def run(self, arguments: Namespace) -> int:
        return self._action(arguments)


class Entry(EntryPoint):
    """An entry point that returns a given command and records that it was loaded."""

    def load(self) -> object:
        LOADED.append(self.name)
        return COMMANDS[self.name]


LOADED: list[str] = []
COMMANDS: dict[str, Verb] = {}


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Namespace], int]], None]:
    """Install the verbs `verb` and `other`; the returned function sets the action of `verb`."""
    LOADED.clear()
    COMMANDS.clear()
    COMMANDS["other"] = Verb(lambda arguments: 0)
    entries = {name: Entry(name, "module:attribute", "group") for name in ("verb", "other")}
    monkeypatch.setattr(cli, "installed", lambda group: entries)

    def install(action: Callable[[Namespace], int]) -> None:
        COMMANDS["verb"] = Verb(action)

    install(lambda arguments: 0)
    return install


def raising(error: BaseException) -> Callable[[Namespace], int]:
    return Mock(side_effect=error)


Verbs = Callable[[Callable[[Namespace], int]], None]


def test_main_loads_only_the_verb_that_it_runs(verbs: Verbs) -> None:
    seen: list[int] = []

    def action(arguments: Namespace) -> int:
        seen.append(arguments.number)
        return 7

    verbs(action)
    assert main(["verb", "--number", "5"]) == 7
    assert seen == [5]
    assert LOADED == ["verb"]


@pytest.mark.parametrize(
    "arguments", [["--debug"], ["nope"], ["verb", "--nope"], ["verb", "--number", "x"], ["verb", "--num", "1"]]
)
def test_main_exits_with_2_for_wrong_usage(
    arguments: list[str], verbs: Verbs, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    assert "usage: edgedecode" in capsys.readouterr().err


def test_main_shows_the_verbs_and_the_version(verbs: Verbs, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    shown = capsys.readouterr().out
    assert "verb" in shown
    assert "other" in shown
    for words in (["--version"], ["--version", "verb"]):
        with pytest.raises(SystemExit):
            main(words)
        assert capsys.readouterr().out == f"edgedecode {__version__}\n"


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ManifestError("no\npack   here"), "edgedecode: no pack here", 1),
        (InputError("top_p 3 is out of range"), "edgedecode: top_p 3 is out of range", 1),
        (PermissionError(13, "Permission denied", "/x"), "edgedecode: Permission denied: /x", 1),
        (OSError(28, "No space left on device"), "edgedecode: No space left on device", 1),
        (MemoryError(), "edgedecode: the machine is out of memory", 1),
        (KeyboardInterrupt(), "edgedecode: interrupted", 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_main_reports_an_error_in_one_line_unless_debugging(
    error: BaseException, line: str, code: int, verbs: Verbs, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs(raising(error))
    assert main(["verb"]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    with pytest.raises(type(error)):
        main(["verb", "--debug"])


def test_main_shows_the_table_of_an_exceeded_budget(verbs: Verbs, capsys: pytest.CaptureFixture[str]) -> None:
    def action(arguments: Namespace) -> int:
        Budget(10).reserve("weights", 11)
        return 0

    verbs(action)
    assert main(["verb"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("edgedecode: 0.000011 MB are needed for weights, but only 0.000010 MB")
    assert [line.split()[0] for line in lines[1:]] == ["weights", "sum", "budget"]
    with pytest.raises(BudgetExceeded):
        main(["verb", "--debug"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["verb", "a", "story"],
            "edgedecode verb: unrecognized arguments: a story (put quotes around a text of several words)",
        ),
        (["verb", "--nope"], "edgedecode verb: unrecognized arguments: --nope"),
        (["verb", "a\0b"], "edgedecode: an argument contains a NUL character"),
    ],
)
def test_main_reports_unknown_arguments_with_the_verb(
    words: list[str], message: str, verbs: Verbs, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert capsys.readouterr().err.startswith(message)


def test_main_reports_wrong_usage_in_two_lines(verbs: Verbs, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verb", "--number", "x"])
    assert capsys.readouterr().err.splitlines() == [
        "edgedecode verb: argument --number: invalid int value: 'x'",
        "usage: edgedecode verb [options]; `edgedecode verb --help` lists them",
    ]


CLOSED = "standard output is closed: the result cannot be printed"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell's redirections")
@pytest.mark.parametrize(
    ("redirected", "code", "stderr"),
    [
        (">&-", 1, f"edgedecode: {CLOSED}\n"),
        (">/dev/full", 1, "edgedecode: standard output cannot be written: No space left on device\n"),
        ("2>&-", 0, ""),
    ],
)
@pytest.mark.parametrize(
    ("words", "unbuffered"), [("verb", ""), ("verb", "1"), ("--help", ""), ("--version", "1")], ids=str
)
def test_main_reports_failed_output(redirected: str, code: int, stderr: str, words: str, unbuffered: str) -> None:
    """A closed output or a full disk is an error, for help as for answers."""
    if "full" in redirected and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    line = f'"$0" -c "$1" {words} {redirected}'
    script = CHILD.replace("100_000", "3").replace('cli.main(["verb"])', "cli.main()")
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, script],
        capture_output=True,
        timeout=60,
        check=False,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stderr) == (code, stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's redirections")
def test_open_streams_keeps_a_closed_standard_stream_from_being_reused_by_a_file(tmp_path: Path) -> None:
    """Engines write messages to descriptor 2: if it is closed, they would go into the next file that is opened."""
    code = f"""
import os
from edgedecode import cli
cli._open_streams()
with open({str(tmp_path / "file")!r}, "wb") as file:
    os.write(2, b"an engine's message")
    file.write(b"mine")
"""
    subprocess.run(["sh", "-c", '"$0" -c "$1" <&- 2>&-', sys.executable, code], timeout=60, check=True)
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("word", ["1e30", "٣", "1_0", "+5", " 5", "", "0x10", "1.0", "five", "-", "9" * 5000, "5\n"])
def test_whole_number_accepts_plain_digits_only(word: str) -> None:
    for read in (whole_number, count, positive_count, seed):
        with pytest.raises(ArgumentTypeError, match=r"is not a whole number: write it in digits|is too large"):
            read(word)


@pytest.mark.parametrize("word", ["nan", "inf", "1e999", "٣.٥", "1_0.5", "+0.5", "", "half", " 1", "1,5"])
def test_real_number_accepts_plain_finite_numbers_only(word: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a number: write it as, for example"):
        real_number(word)
    assert [real_number(good) for good in ("0.7", "-1", ".5", "1e-3", "2.")] == [0.7, -1, 0.5, 0.001, 2.0]


def test_count_out_of_range_names_the_limits() -> None:
    assert (count("0"), positive_count("007")) == (0, 7)
    with pytest.raises(ArgumentTypeError, match="'1000000000' is too large: the maximum is 999999999"):
        count("1000000000")
    with pytest.raises(ArgumentTypeError, match="'0' is too small: the minimum is 1"):
        positive_count("0")
    assert seed(str(2**64 - 1)) == 2**64 - 1
    with pytest.raises(ArgumentTypeError, match=f"'{2**64}' is too large: the maximum is {2**64 - 1}"):
        seed(str(2**64))


@pytest.mark.parametrize("verb", entry_points(group="edgedecode.commands"), ids=lambda entry: entry.name)
def test_numeric_options_accept_plain_digits_only(verb: EntryPoint) -> None:
    """Every verb's numeric options refuse the other spellings that Python's int and float accept."""
    parser = ArgumentParser()
    verb.load().configure(parser)
    for action in parser._actions:
        read = action.type
        if not callable(read):
            continue
        try:
            numeric = isinstance(read("32"), (int, float)) or read("32") == [32]
        except ArgumentTypeError:
            continue
        for word in ("٣٢", "3_2", "+32", " 32 3", "nan", "inf") if numeric else ():
            with pytest.raises(ArgumentTypeError):
                read(word)


def test_main_keeps_the_traceback_of_a_bug(verbs: Verbs) -> None:
    verbs(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["verb"])


CHILD = """
import sys
from edgedecode import cli
class Verb:
    name = help = "verb"
    def configure(self, parser): pass
    def run(self, arguments):
        from rich.console import Console
        say = Console().print if sys.argv[1] == "rich" else print
        for _ in range(100_000):
            say("a line")
        return 0
class Entry:
    name = "verb"
    def load(self): return Verb()
cli.installed = lambda group: {"verb": Entry()}
sys.exit(cli.main(["verb"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently")
@pytest.mark.parametrize("way", ["print", "rich"])
def test_main_is_silent_when_the_pipe_is_closed(way: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, way], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(child.stdout.fileno(), 10)
    child.stdout.close()
    stderr = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=30) == 141
    assert stderr == b""


HOSTILE = "a\x1b]0;owned\x07b\x9b2Jc\u202ed\u2028e\x7ff\ud800g"
ESCAPED = r"a\x1b]0;owned\x07b\x9b2Jc\u202ed\u2028e\x7ff\ud800g"


def test_shown_escapes_control_characters() -> None:
    assert shown(HOSTILE) == ESCAPED
    assert shown("two\r\nlines\tand שלום, 名前, é") == r"two\r\nlines\tand שלום, 名前, é"
    assert shown_answer("two\nlines\tand \u200fשלום\u202c \x1b[2J\r") == "two\nlines\tand \u200fשלום\u202c \\x1b[2J\\r"


def test_main_escapes_control_characters_in_an_error(verbs: Verbs, capsys: pytest.CaptureFixture[str]) -> None:
    verbs(raising(ManifestError(f"no {HOSTILE}\nhere")))
    assert main(["verb"]) == 1
    assert capsys.readouterr().err == f"edgedecode: no {ESCAPED.replace(chr(92) + 'u2028', ' ')} here\n"
