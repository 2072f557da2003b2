"""The input of a chat: kept history, completion, and the choice between the editor, readline and a pipe."""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgedecode import Pair
from edgedecode.apps.chat.command import open_lines
from edgedecode.apps.chat.input_history import MOST_ENTRIES, InputHistory, kept_history
from edgedecode.apps.chat.lines import PipedLines, TerminalLines
from edgedecode.apps.chat.slash import SLASHES, SlashAssistant
from edgedecode.errors import InputError
from tests.apps.chat_script import conversation_of


def test_history_keeps_inputs_for_a_later_chat(tmp_path: Path) -> None:
    path = tmp_path / "inputs.jsonl"
    history = InputHistory(path)
    for text in ("one", "two\nlines", "two\nlines", "  ", "grüß", "bad \udcff", "x" * 70_000):
        history.add(text)
    assert InputHistory(path).entries == history.entries == ["one", "two\nlines", "grüß"]
    other = InputHistory(path)  # of a chat at the same time
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    history.add("three")
    other.add("four")
    assert InputHistory(path).entries[3:] == ["three", "four"]
    assert sys.platform == "win32" or stat.S_IMODE(path.stat().st_mode) == 0o600, "others could read it"


def test_history_is_shortened_once_it_is_twice_too_long(tmp_path: Path) -> None:
    path = tmp_path / "inputs.jsonl"
    path.write_text("".join(f'"{number}"\n' for number in range(2 * MOST_ENTRIES + 1)))
    assert InputHistory(path).entries[0] == str(MOST_ENTRIES + 1)
    assert len(path.read_text().splitlines()) == MOST_ENTRIES
    assert list(tmp_path.iterdir()) == [path]
    InputHistory(path).add("last")
    assert InputHistory(path).entries[-1] == "last"


@pytest.mark.parametrize("data", [b"\xff\n", b"[" * 100_000, b"3\n", b'"open', b'"\\ud800"\n', b"\0" * 10])
def test_history_skips_lines_that_are_not_its_own(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "inputs.jsonl"
    path.write_bytes(data + b'\n"kept"\n')
    assert InputHistory(path).entries == ["kept"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_history_that_is_no_file_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    assert InputHistory(pipe).entries == []
    (file := tmp_path / "file").touch()
    monkeypatch.setenv("EDGEDECODE_CACHE", str(file / "cache"))
    for history in (InputHistory(tmp_path), kept_history()):
        history.add("one")
        assert history.entries == ["one"]


def completed(text: str, assistant: SlashAssistant) -> Sequence[str]:
    """Return the texts that Tab can make of a text."""
    editor = pytest.importorskip("edgedecode.apps.chat.editor")
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    found = editor.SlashCompleter(assistant).get_completions(Document(text), CompleteEvent())
    return [text[: len(text) + each.start_position] + each.text for each in found]


def test_completion_of_commands_modes_adapters_and_files(
    toy: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.json").touch()
    assistant = SlashAssistant(conversation_of(toy))
    assert completed("/", assistant) == [f"/{name} " for name in SLASHES]
    assert completed("/m", assistant) == ["/model ", "/memory "]
    assert completed("/set decoding s", assistant) == ["/set decoding switch", "/set decoding suffix"]
    assert completed("/set so", assistant) == ["/set sources on", "/set sources off"]
    assert completed("/adapter o", assistant) == ["/adapter off"]
    assert completed("/set temp", assistant) == ["/set temperature "]
    assert completed("/load ta", assistant) == ["/load talk.json"]
    assert completed(f"/save {tmp_path}/ta", assistant) == [f"/save {tmp_path}/talk.json"]
    for text in ("hello", "hello /", "/stats ", "/nosuch ", "/system TEX", "/\nset"):
        assert completed(text, assistant) == []


class Stream:
    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def fileno(self) -> int:
        return 0


def test_open_lines_of_a_pipe_a_dumb_terminal_and_a_redirected_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stream(False))
    assert isinstance(open_lines(keep_history=True), PipedLines)
    monkeypatch.setattr(sys, "stdin", Stream(True))
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(open_lines(keep_history=False), TerminalLines)  # standard output is captured
    monkeypatch.setattr(sys, "stdout", Stream(True))
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_lines(keep_history=False), TerminalLines)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        open_lines(keep_history=False)


def test_terminal_lines_join_continued_lines_and_ask_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["one\\", "two", "three"])
    monkeypatch.setattr("builtins.input", lambda *prompt: next(typed))
    history = InputHistory()
    lines = TerminalLines(history)
    assert [lines.read(), lines.read()] == ["one\ntwo", "three"]
    assert history.entries == ["one\ntwo", "three"]
    assert capsys.readouterr() == ("", "> … > ")
