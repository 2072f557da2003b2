"""`chat` on the bundled pack at a real pseudo-terminal, with the line editor and with readline."""

import json
import re
import stat
import sys
from collections.abc import Sequence
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


def chat(*words: str, **options: str | int) -> TerminalChild:
    return TerminalChild(["chat", "--temp", "0", *words], **options)  # type: ignore[arg-type]


def asked(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "user"]


def test_chat_at_a_terminal_answers_keeps_history_and_restores_the_terminal(cache: Path) -> None:
    with chat() as child:
        child.until("demo · scheduled · 0 of 2048 tokens")
        child.send(f"{QUESTION}\r")
        child.until(ANSWER)
        child.until(r"demo · scheduled · \d\d of 2048 tokens")
        for typed, shown in (("/mo\t", "/mode"), ("pl\t", "plain"), ("\r", "mode plain: the target alone, no drafts")):
            child.send(typed)
            child.until(shown)  # completions come when they are found
        child.until(r"demo · plain · \d\d of 2048 tokens")
        child.send("/retry\r")
        child.until(ANSWER)
        child.until("no drafts")
        child.until(r"demo · plain · \d\d of 2048 tokens")
        child.send("/help\r")
        child.until("Alt-Enter, Ctrl-J  begin a new line")
        child.quit()
        assert child.mode_now() == child.mode
    kept, lines = cache / "history" / "inputs.jsonl", [QUESTION, "/mode plain", "/retry", "/help"]
    assert [json.loads(line) for line in kept.read_text().splitlines()] == lines
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    with chat() as child:
        child.until("0 of 2048 tokens")
        child.send("\x1b[A" * 4)  # up
        child.until(r"What is the capital of France\?")
        child.send("\r")
        child.until(ANSWER)
        child.send("\x12frog")  # Ctrl-R
        child.until("I-search backward: .*frog")
        child.send("\x03\x03\x03")
        assert child.end() == 0
    assert main(["cache", "clear", "--history"]) == 0
    assert not kept.exists()


def test_chat_with_no_history_neither_reads_nor_writes_it(cache: Path) -> None:
    (cache / "history").mkdir(parents=True)
    kept = cache / "history" / "inputs.jsonl"
    kept.write_text('"an earlier message"\n')
    with chat("--no-history") as child:
        child.until("0 of 2048 tokens")
        child.send("\x1b[A\r/help\r")
        child.until("/help[^?]*show this list")
        assert "an earlier message" not in child.output
        child.quit()
    assert kept.read_text() == '"an earlier message"\n'


def test_messages_of_several_lines_arrive_whole(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with chat("-n", "4") as child:
        child.until("0 of 2048 tokens")
        child.send("one\x1b\rtwo\nthree\\\rfour\r")  # Alt-Enter, Ctrl-J, a backslash
        child.until(r"tok/s[\s\S]*of 2048 tokens")
        child.send("\x1b[200~pasted\rin\rlines\x1b[201~")
        child.until("lines")
        child.send("\r")
        child.until(r"tok/s[\s\S]*of 2048 tokens")
        child.send(f"/save {file}\r")
        child.until("4 messages saved")
        child.quit()
    assert asked(load_messages(file)) == ["one\ntwo\nthree\nfour", "pasted\nin\nlines"]


def test_ctrl_c_stops_an_answer_then_warns_and_quits(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    file = tmp_path / "talk.json"
    with chat(*LONG, columns=60) as child:
        child.until("0 of 2048 tokens")
        child.send("hello\r")
        child.until(r"[a-z ]{100}")
        child.send("\x03")
        child.until(r"interrupted[\s\S]*of 2048 tokens")
        child.send(f"/save {file}\r")
        child.until("2 messages saved")
        child.until(r"of 2048 tokens")
        child.send("\x03")
        child.until("press Ctrl-C again to quit")
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
        child.until("0 of 2048 tokens")
        child.send("hello\r")
        child.until(r"[a-z ]{100}")
        child.send("LATER")
        child.until(r"[a-z ]{100}")
        assert "LATER" not in child.output
        child.send("\x03")
        child.until(r"interrupted[\s\S]*> LATER")
        child.send("\x03\x03")
        assert child.end() == 0


def test_chat_without_the_line_editor_uses_readline_with_the_same_history(cache: Path) -> None:
    pytest.importorskip("readline")
    kept = cache / "history" / "inputs.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(QUESTION) + "\n")
    with chat(before=NO_EDITOR) as child:
        child.until("> ")
        child.send("\x1b[A\r")
        child.until(ANSWER)
        child.until("> ")
        child.send("/help\r")
        child.until(r"\\ Enter +begin a new line[\s\S]*> ")
        child.quit()
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [QUESTION, "/help"]
