"""`chat` on a toy pair, piped and interactive: slash commands, saved files and Ctrl-C."""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedecode import FinishReason, Message, Pair, Session, SessionOptions, WhenFull
from edgedecode.apps.chat import conversation as conversation_module
from edgedecode.apps.chat.conversation import Conversation
from edgedecode.apps.chat.lines import PipedLines, TerminalLines
from edgedecode.apps.chat.slash import load_messages, run_slash, save_messages
from edgedecode.apps.colour import Paint
from edgedecode.cli import main
from edgedecode.errors import InputError
from edgedecode.memory.process_memory import memory_now
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.hub import BUNDLED_PACK
from tests.peft_folders import list_adapter, write_peft

Line = str | type[BaseException] | BaseException | None


class Script:
    """Scripted input lines; an exception in the list is raised instead."""

    interactive = True

    def __init__(self, *lines: Line) -> None:
        self._lines = iter(lines)

    def read(self) -> str | None:
        line = next(self._lines, None)
        if isinstance(line, type | BaseException):
            raise line
        return line


@pytest.fixture
def session(toy: Pair) -> Iterator[Session]:
    with toy.session(SessionOptions(seed=1, ignore_eos=True, draft_max=2)) as session:
        yield session


def talk(session: Session, *lines: Line, max_tokens: int = 12) -> Conversation:
    conversation = Conversation(
        session, Script(*lines), paint=Paint(on=False), run_slash=run_slash, max_tokens=max_tokens
    )
    assert conversation.run() == 0
    return conversation


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.usefixtures("toy")
def test_chat_answers_piped_lines_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    piped(monkeypatch, b"hello\n\n/stats\nagain")
    assert main(["chat", "-n", "12", "--temp", "0", "--system", "be brief", "--draft-max", "2"]) == 0
    out, err = capsys.readouterr()
    assert out
    assert err.count("tok/s") == 2
    assert "by position" in err


@pytest.mark.usefixtures("toy")
def test_chat_refuses_invalid_utf8_on_stdin_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, b"caf\xe9\n")
    assert main(["chat"]) == 1
    err = capsys.readouterr().err
    assert "line 1 of standard input is not valid UTF-8" in err
    assert err.count("\n") == 1


def test_reset_drops_the_turns_and_keeps_the_system_message(session: Session) -> None:
    session.reset([Message("system", "be brief")])
    talk(session, "hello", "//slash")
    assert [message.role for message in session.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert session.messages[3].content == "/slash"
    talk(session, "/reset")
    assert [message.content for message in session.messages] == ["be brief"]
    talk(session, "/system be kind")
    assert [message.content for message in session.messages] == ["be kind"]


def test_save_and_load_round_trip(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talk.json"
    talk(session, "hello", f"/save {file}")
    messages = session.messages
    talk(session, "/reset", f"/load {file}")
    assert session.messages == messages
    assert {path.name for path in tmp_path.iterdir()} == {"talk.json", "edgedecode.json"}
    assert "2 messages loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"3", "does not contain a list of messages"),
        (b'{"messages": {}}', "does not contain a list of messages"),
        (b'[{"role": "user"}]', "message 1"),
        (b'[{"role": "user", "content": 3}]', "message 1"),
        (b'[{"role": "pirate", "content": "arr"}]', "'pirate' is unknown"),
        (b'{"messages": ' + b"1" * 5000 + b"}", "is not JSON (Exceeds the limit"),
        (b'[{"role": "user", "content": "\\ud800"}]', "message 1: the content is not valid UTF-8"),
    ],
)
def test_load_of_a_bad_file_prints_one_line_and_keeps_the_conversation(
    content: bytes | None, expected: str, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, "hello")
    messages = session.messages
    capsys.readouterr()
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_bytes(content)
    talk(session, f"/load {file}")
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
    assert session.messages == messages


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_load_messages_limits_what_it_reads_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless device such as /dev/zero would otherwise fill the memory."""
    monkeypatch.setattr("edgedecode.apps.chat.slash.LARGEST_NBYTES", 100)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'wb').write(bytes(1 << 20))"], stderr=-3)
    with pytest.raises(InputError, match="longer than"):
        load_messages(pipe)
    assert writer.wait(timeout=60) != 0


def test_load_messages_refuses_a_file_that_cannot_fit_the_context(tmp_path: Path) -> None:
    """Answering a conversation of 4 MB in a context of 2,048 tokens took 950 MB."""
    file = tmp_path / "talk.json"
    save_messages(file, [Message("user", "hello " * 700_000)])
    assert len(load_messages(file, context=100_000)) == 1
    with pytest.raises(
        InputError, match="has more than 196608 bytes, longer than a conversation that fits this context"
    ):
        load_messages(file, context=2048)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_save_messages_refuses_to_replace_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        save_messages(pipe, [Message("user", "one")])
    assert pipe.is_fifo()


def test_save_messages_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "talk.json"
    save_messages(file, [Message("user", "one")])

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_messages(file, [Message("user", "two")])
    assert load_messages(file) == [Message("user", "one")]
    assert list(tmp_path.iterdir()) == [file]


def test_save_messages_writes_plain_json_and_load_takes_a_bare_list(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    save_messages(file, [Message("user", "grüß")])
    assert json.loads(file.read_text("utf-8")) == {"messages": [{"role": "user", "content": "grüß"}]}
    file.write_text('[{"role": "user", "content": "bare"}]')
    assert load_messages(file) == [Message("user", "bare")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/nonsense", "there is no command /nonsense"),
        ("/save", "usage: /save FILE"),
        ("/reset now", "usage: /reset"),
        ("/stats", "there is no answer yet"),
        ("/adapter", "usage: /adapter NAME"),
        ("/adapter formal", "the pack has no adapters"),
        ("/adapter formal:much", "'much' is not a number"),
        ("/adapter :2", "':2' has no name"),
        ("/save /no/such/folder/x.json", "No such file or directory: /no/such/folder/x.json\n"),
        ("/save a\0b", "contains a NUL character"),
        ("/load a\0b", "contains a NUL character"),
    ],
)
def test_slash_command_that_fails_prints_one_line(
    line: str, expected: str, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, line)
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


def test_help_lists_every_command_and_color_toggles(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(session, "/color", "/help", "hello")
    assert conversation.paint.on
    out, err = capsys.readouterr()
    for name in (
        "Ctrl-C",
        "Ctrl-D",
        "/reset",
        "/system",
        "/stats",
        "/memory",
        "/color",
        "/save",
        "/load",
        "/help",
        "/quit",
    ):
        assert name in err
    assert "\x1b[32m" in out


def test_memory_shows_plan_and_process(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    talk(session, "hello", "/memory")
    err = capsys.readouterr().err
    assert session.budget.table() in err
    title, now, peak = (line.split() for line in err.splitlines()[-3:])
    assert title == ["planned", "resident", "anonymous", "proportional"]
    assert (now[0], peak[0]) == ("now", "peak")
    assert now[1:3] == peak[1:3] == format_nbytes(session.budget.used_nbytes).split()
    assert peak[-2:] == ["-", "-"]  # no sampler runs
    if (process := memory_now()) is not None:
        assert "-" not in now
        assert process.anonymous is not None
        assert 0 < process.anonymous <= process.resident


@pytest.mark.usefixtures("toy")
def test_stats_after_each_answer_show_every_peak(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, b"hello\nagain\n/memory\n")
    assert main(["chat", "-n", "12", "--temp", "0", "--stats"]) == 0
    err = capsys.readouterr().err
    assert err.count("acceptance length") == 2
    assert err.count("peak of the process: ") == 2
    if memory_now() is not None:
        assert err.count("anonymous") == err.count("proportional") == 3
        assert "-" not in err.splitlines()[-1].split()


def test_chat_with_a_full_context_suggests_reset_and_continues(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    stops = SessionOptions(context=80, ignore_eos=True, seed=1, when_full=WhenFull.STOP)
    with toy.session(stops) as session:
        conversation = talk(session, "hello", "x" * 100, "/reset", "x" * 100, "hello", max_tokens=10)
        err = capsys.readouterr().err
        assert err.count("/reset starts over") == 1
        assert err.count("the message is longer than the context of 80 tokens: shorten it\n") == 1
        assert conversation.last_finish is FinishReason.LENGTH
        assert len(session.messages) == 2
        talk(session, "hello", max_tokens=1000)
        assert "the context is full: /reset starts over" in capsys.readouterr().err


def test_chat_that_outgrows_its_context_drops_the_oldest_turns(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    with toy.session(SessionOptions(context=120, ignore_eos=True, seed=1)) as session:
        messages = [f"hello {turn}" for turn in range(8)]
        talk(session, *messages, "x" * 200, max_tokens=10)
        err = capsys.readouterr().err
        assert "the message is longer than the context of 120 tokens: shorten it" in err
        assert "/reset" not in err
        assert session.messages[-2].content == "hello 7"
        assert len(session.messages) < 16
        talk(session, "hello", max_tokens=1000)
        assert "the context is full: /reset starts over" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_warns_first_and_quits_the_second_time(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, KeyboardInterrupt, "hello", KeyboardInterrupt, KeyboardInterrupt, "never read")
    assert len(session.messages) == 2
    assert capsys.readouterr().err.count("Ctrl-C again") == 2


def test_ctrl_c_stops_the_answer_and_keeps_the_session(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if text and self.tell() == 0:
                return super().write(text)
            if text.strip() and not self.getvalue().endswith("!"):
                os.kill(os.getpid(), signal.SIGINT)
                return super().write(text + "!")
            return super().write(text)

    out = Interrupting()
    monkeypatch.setattr(sys, "stdout", out)
    conversation = Conversation(
        session, Script("hello", None), paint=Paint(on=False), run_slash=run_slash, max_tokens=200
    )
    assert conversation.run() == 0
    assert conversation.last_finish is FinishReason.CANCELLED
    assert "interrupted" in capsys.readouterr().err
    assert len(session.tokens) < 200
    assert [message.role for message in session.messages] == ["user", "assistant"]
    assert session.messages[1].content == out.getvalue().replace("!", "").removesuffix("\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    conversation.answer("and now?")
    assert conversation.last_finish is FinishReason.LENGTH


def interrupt(*words: object, **options: object) -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["stream", "reset", "stats_line"])
def test_ctrl_c_between_tokens_drops_the_line_and_the_chat_continues(
    name: str, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pressed while a message is encoded, a slash command runs, or the statistics are printed."""
    with monkeypatch.context() as patch:
        patch.setattr(conversation_module if name == "stats_line" else session, name, interrupt)
        talk(session, "/reset" if name == "reset" else "hello", None)
        assert capsys.readouterr().err == "\n(interrupted)\n"
    assert [message.role for message in session.messages] == (["user", "assistant"] if name == "stats_line" else [])
    assert talk(session, "and now?").last_finish is FinishReason.LENGTH


def test_piped_chat_ends_on_ctrl_c_and_on_a_bad_line(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Script("hello", InputError("bad"))
    lines.interactive = False
    conversation = Conversation(session, lines, paint=Paint(on=False), run_slash=run_slash, max_tokens=12)
    with pytest.raises(InputError, match="bad"):
        conversation.run()
    monkeypatch.setattr(session, "stream", interrupt)
    conversation = Conversation(session, PipedLines(), paint=Paint(on=False), run_slash=run_slash, max_tokens=12)
    piped(monkeypatch, b"hello\n")
    with pytest.raises(KeyboardInterrupt):
        conversation.run()


def test_chat_refuses_an_unreadable_line_and_continues(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(session, InputError("the message is\nnot valid UTF-8"), "hello")
    assert capsys.readouterr().err.startswith("edgedecode: the message is not valid UTF-8\n")
    assert conversation.last_finish is FinishReason.LENGTH


@pytest.mark.parametrize("strict", [True, False])
def test_terminal_lines_refuse_invalid_utf8_in_every_locale(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(prompt: str) -> str:
        return b"caf\xe9!".decode("utf-8", "strict" if strict else "surrogateescape")

    monkeypatch.setattr(builtins, "input", typed)
    with pytest.raises(InputError, match=r"the message is not valid UTF-8 at .* 3"):
        TerminalLines().read()


def test_piped_lines_end_with_none_and_refuse_invalid_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"one\r\ntwo")
    lines = PipedLines()
    assert [lines.read(), lines.read(), lines.read()] == ["one", "two", None]
    piped(monkeypatch, b"\xff\n")
    with pytest.raises(InputError, match="not valid UTF-8"):
        lines.read()


@pytest.mark.parametrize("start", [(), ("--adapter", "odd")])
def test_slash_adapter_changes_the_adapter(
    start: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    list_adapter(pack, "odd", write_peft(tmp_path / "odd", seed=1, invocation=(1, 307, 201)))
    swaps = [f"/reset\n/adapter {name}\nhello" for name in ("odd:0", "odd", "off")]
    piped(monkeypatch, "\n".join(["hello", *swaps, "/adapter nosuch"]).encode())
    assert main(["chat", "-m", str(pack), "--runtime", "onnx", "-n", "12", "--temp", "0", *start]) == 0
    out, err = capsys.readouterr()
    first, zero, odd, off = out.splitlines()
    assert first == (odd if start else zero)
    assert odd != zero == off
    assert "the next answer uses the adapter odd" in err
    assert "the next answer uses no adapter" in err
    assert "the pack has no adapter 'nosuch'; it has: odd" in err
