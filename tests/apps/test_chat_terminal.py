"""`chat` on the bundled pack at a real pseudo-terminal, with the line editor and with readline."""

import json
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgedecode import Message
from edgedecode.apps.chat.saved_messages import load_messages
from edgedecode.cli import main

if sys.platform == "win32":
    pytest.skip("pseudo-terminals", allow_module_level=True)

from tests.apps.terminal_child import TerminalChild

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
LONG = ("--regex", "[a-z ]{6000}", "-n", "1900")
"""An answer that takes a second or more."""
NO_EDITOR = "sys.modules['prompt_toolkit'] = None"

pytestmark = pytest.mark.usefixtures("pack")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without earlier inputs."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@contextmanager
def chat(*words: str, begins: str = "0 of 2048 tokens", **options: str | int) -> Iterator[TerminalChild]:
    """Run `chat` at a terminal, once it shows that it has begun."""
    with TerminalChild(["chat", "--temp", "0", *words], **options) as child:  # type: ignore[arg-type]
        child.until(begins)
        yield child


def asked(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "user"]


def test_chat_at_a_terminal_answers_keeps_history_and_restores_the_terminal(cache: Path) -> None:
    with chat(begins="demo · auto · 0 of 2048 tokens") as child:
        child.types(f"{QUESTION}\r", ANSWER)
        child.until(r"demo · auto · \d\d of 2048 tokens")
        typing = ("/se\t", "/set"), ("decoding pl\t", "plain"), ("\r", "decoding plain: no drafts")
        for typed, shown in typing:
            child.types(typed, shown)  # completions come when they are found
        child.until(r"demo · plain · \d\d of 2048 tokens")
        child.types("/retry\r", ANSWER)
        child.until("no drafts")
        child.until(r"demo · plain · \d\d of 2048 tokens")
        child.types("/help\r", "Alt-Enter, Ctrl-J +begin a new line")
        child.quit()
        assert child.mode_now() == child.mode
    kept, lines = cache / "history" / "inputs.jsonl", [QUESTION, "/set decoding plain", "/retry", "/help"]
    assert [json.loads(line) for line in kept.read_text().splitlines()] == lines
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    with chat() as child:
        child.types("\x1b[A" * 4, r"What is the capital of France\?")  # up
        child.types("\r", ANSWER)
        child.types("\x12frog", "I-search backward: .*frog")  # Ctrl-R
        child.send("\x03\x03\x03")
        assert child.end() == 0
    assert main(["cache", "clear", "--history"]) == 0
    assert not kept.exists()


def test_chat_with_no_history_neither_reads_nor_writes_it(cache: Path) -> None:
    (cache / "history").mkdir(parents=True)
    kept = cache / "history" / "inputs.jsonl"
    kept.write_text('"an earlier message"\n')
    with chat("--no-history") as child:
        child.types("\x1b[A\r/help\r", "/help[^?]*show this list")
        assert "an earlier message" not in child.output
        child.quit()
    assert kept.read_text() == '"an earlier message"\n'


def test_messages_of_several_lines_arrive_whole(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with chat("-n", "4") as child:
        child.types("one\x1b\rtwo\nthree\\\rfour\r", r"tok/s[\s\S]*of 2048 tokens")  # Alt-Enter, Ctrl-J, a backslash
        child.types("\x1b[200~pasted\rin\rlines\x1b[201~", "lines")
        child.types("\r", r"tok/s[\s\S]*of 2048 tokens")
        child.types('"""in\rquotes\r"""\r', r"tok/s[\s\S]*of 2048 tokens")
        child.types(f"/save {file}\r", "6 messages saved")
        child.quit()
    assert asked(load_messages(file)) == ["one\ntwo\nthree\nfour", "pasted\nin\nlines", "in\nquotes"]


def test_ctrl_c_stops_an_answer_then_warns_and_quits(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    file = tmp_path / "talk.json"
    with chat(*LONG, columns=60) as child:
        child.types("hello\r", r"[a-z ]{100}")
        child.types("\x03", r"interrupted[\s\S]*of 2048 tokens")
        child.types(f"/save {file}\r", "2 messages saved")
        child.until(r"of 2048 tokens")
        child.types("\x03", "press Ctrl-C again to quit")
        child.until("of 2048 tokens")
        child.send("\x03")
        assert child.end() == 0
        assert child.mode_now() == child.mode
    answer = load_messages(file)[1].content
    # On a busy machine the line is drawn again when it is entered.
    shown = re.search(r"> hello\n(?!\s*> hello)([\s\S]*?)\n\d+ tokens", child.output)
    assert shown
    assert len(answer) > 40
    assert shown[1].replace("\n", "") == answer


def test_text_typed_ahead_goes_to_the_next_prompt_and_not_into_the_answer() -> None:
    pytest.importorskip("llguidance")
    with chat(*LONG, columns=60) as child:
        child.types("hello\r", r"[a-z ]{100}")
        child.types("LATER", r"[a-z ]{100}")
        assert "LATER" not in child.output
        child.types("\x03", r"interrupted[\s\S]*> LATER")
        child.send("\x03\x03")
        assert child.end() == 0


def test_chat_without_the_line_editor_uses_readline_with_the_same_history(cache: Path) -> None:
    pytest.importorskip("readline")
    kept = cache / "history" / "inputs.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(QUESTION) + "\n")
    with chat(begins="> ", before=NO_EDITOR) as child:
        child.types("\x1b[A\r", ANSWER)
        child.until("> ")
        child.types("/help\r", r"\\ Enter +begin a new line[\s\S]*> ")
        child.quit()
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [QUESTION, "/help"]
