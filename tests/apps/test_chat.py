"""`chat` on a toy pair, piped and interactive: slash commands, saved files and Ctrl-C."""

import builtins
import io
import os
import signal
import sys
from pathlib import Path

import pytest

from edgedecode import FinishReason, InputError, Message, Pair, SessionDetails, SessionOptions, WhenFull
from edgedecode.apps.chat import conversation as conversation_module
from edgedecode.apps.chat.conversation import Conversation
from edgedecode.apps.chat.input_history import InputHistory
from edgedecode.apps.chat.lines import PipedLines, TerminalLines
from edgedecode.apps.chat.slash import SLASHES
from edgedecode.apps.colour import SOURCES
from edgedecode.cli import main
from edgedecode.memory.process_memory import memory_now
from edgedecode.memory.sizes import format_nbytes
from tests.apps.chat_script import Script, conversation_of, piped, talk
from tests.peft_folders import list_adapter, write_peft


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("stats", [[], ["--stats", "full"]])
def test_chat_answers_piped_lines_in_order(
    stats: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, b"hello\n\n/stats\nagain\n/memory\n")
    assert main(["chat", "-n", "12", "--temp", "0", "--system", "be brief", "--draft-max", "2", *stats]) == 0
    out, err = capsys.readouterr()
    assert out
    assert err.count("tok/s") == (0 if stats else 2)
    assert err.count("by position") == err.count("peak of the process: ") == (3 if stats else 1)
    if memory_now() is not None:
        assert err.count("anonymous") == err.count("proportional") == 1  # of /memory
        assert "-" not in err.splitlines()[-2].split()


def test_reset_drops_the_turns_and_keeps_the_system_message(chat: Conversation) -> None:
    chat.session.reset([Message("system", "be brief")])
    talk(chat, "hello", "//slash")
    assert [message.role for message in chat.session.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert chat.session.messages[3].content == "/slash"
    talk(chat, "/clear")
    assert [message.content for message in chat.session.messages] == ["be brief"]
    talk(chat, "/system be kind")
    assert [message.content for message in chat.session.messages] == ["be kind"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/nonsense", "there is no command /nonsense: /help lists the commands"),
        ("/hlep", "there is no command /hlep: did you mean /help?"),
        ("/save", "usage: /save FILE"),
        ("/reset now", "usage: /reset"),
        ("/stats", "there is no answer yet"),
        ("/color green", "usage: /color [on|off]"),
        ("/undo", "the conversation is empty"),
        ("/retry", "the conversation is empty"),
        ("/mode nosuch", "there is no mode 'nosuch'; there are: scheduled, fixed, plain, switch, "),
        ("/think on", "this pack's chat template has no switch for thinking"),
        ("/think off", "thinking is not turned off by 'off': this pack's chat template has no switch for thinking"),
        ("/think hard", "thinking is 'hard': use one of off, on, "),
        ("/adapter formal", "the pack has no adapters"),
        ("/adapter formal:much", "'much' is not a number"),
        ("/adapter :2", "':2' has no name"),
        ("/save /no/such/folder/x.json", "No such file or directory: /no/such/folder/x.json\n"),
        ("/save a\0b", "contains a NUL character"),
        ("/load a\0b", "contains a NUL character"),
    ],
)
def test_slash_command_that_fails_prints_one_line(
    line: str, expected: str, chat: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(chat, line)
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


def test_help_lists_every_command_and_key(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk(chat, "/help")
    err = capsys.readouterr().err
    for name, slash in SLASHES.items():
        assert f"  /{name} {slash.argument}".rstrip() in err
        assert slash.help in err
    assert "  Ctrl-C " in err
    assert "  Ctrl-D " in err


def test_color_shows_the_legend_and_switches_colours(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk(chat, "/color", "hello")
    out, err = capsys.readouterr()
    assert "tokens are not coloured" in err
    assert "\x1b" not in out + err
    assert len({shade.code for shade in SOURCES.values()}) == len(SOURCES)
    for source in ("target", "model", "trim", "suffix", "recycle", "tree", "forced", "draft"):
        assert f"{SOURCES[source].name:<14}  {SOURCES[source].origin}\n" in err
    talk(chat, "/color on", "hello")
    out, err = capsys.readouterr()
    assert "tokens are coloured by source" in err
    assert "\x1b[32m" in out
    talk(chat, "/color off", "hello")
    assert "\x1b" not in capsys.readouterr().out


def test_memory_shows_plan_and_process(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk(chat, "hello", "/memory")
    err = capsys.readouterr().err
    assert chat.pair.budget.table() in err
    title, now, peak = (line.split() for line in err.splitlines()[-3:])
    assert title == ["planned", "resident", "anonymous", "proportional"]
    assert (now[0], peak[0]) == ("now", "peak")
    assert now[1:3] == peak[1:3] == format_nbytes(chat.pair.budget.used_nbytes).split()
    assert peak[-2:] == ["-", "-"]  # no sampler runs
    if (process := memory_now()) is not None:
        assert "-" not in now
        assert process.anonymous is not None
        assert 0 < process.anonymous <= process.resident


def test_chat_with_a_full_context_suggests_reset_and_continues(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    stops = SessionOptions(context=80, seed=1, details=SessionDetails(ignore_eos=True, when_full=WhenFull.STOP))
    chat = talk(conversation_of(toy, stops, max_tokens=10), "hello", "x" * 100, "/reset", "x" * 100, "hello")
    err = capsys.readouterr().err
    assert err.count("/reset starts over") == 1
    assert err.count("the message is longer than the context of 80 tokens: shorten it\n") == 1
    assert chat.last_finish is FinishReason.LENGTH
    assert len(chat.session.messages) == 2
    talk(conversation_of(toy, stops, max_tokens=1000), "hello")
    assert "the context is full: /reset starts over" in capsys.readouterr().err


def test_chat_that_outgrows_its_context_drops_the_oldest_turns(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    drops = SessionOptions(context=120, seed=1, details=SessionDetails(ignore_eos=True))
    messages = [f"hello {turn}" for turn in range(8)]
    chat = talk(conversation_of(toy, drops, max_tokens=10), *messages, "x" * 200)
    err = capsys.readouterr().err
    assert "the message is longer than the context of 120 tokens: shorten it" in err
    assert "/reset" not in err
    assert chat.session.messages[-2].content == "hello 7"
    assert len(chat.session.messages) < 16
    talk(conversation_of(toy, drops, max_tokens=1000), "hello")
    assert "the context is full: /reset starts over" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_warns_first_and_quits_the_second_time(
    chat: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(chat, KeyboardInterrupt, "hello", KeyboardInterrupt, KeyboardInterrupt, "never read")
    assert len(chat.session.messages) == 2
    assert capsys.readouterr().err.count("Ctrl-C again") == 2


def test_ctrl_c_stops_the_answer_and_keeps_the_session(
    toy: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    chat = talk(conversation_of(toy, max_tokens=200), "hello", None)
    assert chat.last_finish is FinishReason.CANCELLED
    assert "interrupted" in capsys.readouterr().err
    assert len(chat.session.tokens) < 200
    assert [message.role for message in chat.session.messages] == ["user", "assistant"]
    assert chat.session.messages[1].content == out.getvalue().replace("!", "").removesuffix("\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    chat.answer("and now?")
    assert chat.last_finish is FinishReason.LENGTH


def interrupt(*words: object, **options: object) -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["stream", "reset", "stats_line"])
def test_ctrl_c_between_tokens_drops_the_line_and_the_chat_continues(
    name: str, chat: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pressed while a message is encoded, a slash command runs, or the statistics are printed."""
    with monkeypatch.context() as patch:
        patch.setattr(conversation_module if name == "stats_line" else chat.session, name, interrupt)
        talk(chat, "/reset" if name == "reset" else "hello", None)
        assert capsys.readouterr().err == "\n(interrupted)\n"
    assert [message.role for message in chat.session.messages] == (
        ["user", "assistant"] if name == "stats_line" else []
    )
    assert talk(chat, "and now?").last_finish is FinishReason.LENGTH


def test_piped_chat_ends_on_ctrl_c_and_on_a_bad_line(chat: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Script("hello", InputError("bad"))
    lines.interactive = False
    chat.lines = lines
    with pytest.raises(InputError, match="bad"):
        chat.run()
    monkeypatch.setattr(chat.session, "stream", interrupt)
    chat.lines = PipedLines()
    piped(monkeypatch, b"hello\n")
    with pytest.raises(KeyboardInterrupt):
        chat.run()


def test_chat_refuses_an_unreadable_line_and_continues(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(chat, InputError("the message is\nnot valid UTF-8"), "hello")
    assert capsys.readouterr().err.startswith("edgedecode: the message is not valid UTF-8\n")
    assert conversation.last_finish is FinishReason.LENGTH


@pytest.mark.parametrize("strict", [True, False])
def test_terminal_lines_refuse_invalid_utf8_in_every_locale(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(prompt: str = "") -> str:
        return b"caf\xe9!".decode("utf-8", "strict" if strict else "surrogateescape")

    monkeypatch.setattr(builtins, "input", typed)
    with pytest.raises(InputError, match=r"the message is not valid UTF-8 at .* 3"):
        TerminalLines(InputHistory()).read()


def test_piped_lines_end_with_none_and_refuse_invalid_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"one\r\ntwo")
    lines = PipedLines()
    assert [lines.read(), lines.read(), lines.read()] == ["one", "two", None]
    piped(monkeypatch, b"\xff\n")
    with pytest.raises(InputError, match="not valid UTF-8"):
        lines.read()


@pytest.mark.parametrize("start", [(), ("--adapter", "odd")])
def test_slash_adapter_changes_the_adapter(
    start: tuple[str, ...],
    pack_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    list_adapter(pack_copy, "odd", write_peft(tmp_path / "odd", seed=1, invocation=(1, 307, 201)))
    swaps = [f"/reset\n/adapter {name}\nhello" for name in ("odd:0", "odd", "off")]
    piped(monkeypatch, "\n".join(["hello", *swaps, "/adapter nosuch"]).encode())
    assert main(["chat", "-m", str(pack_copy), "--runtime", "onnx", "-n", "12", "--temp", "0", *start]) == 0
    out, err = capsys.readouterr()
    first, zero, odd, off = out.splitlines()
    assert first == (odd if start else zero)
    assert odd != zero == off
    assert "the next answer uses the adapter odd" in err
    assert "the next answer uses no adapter" in err
    assert "the pack has no adapter 'nosuch'; it has: odd" in err
