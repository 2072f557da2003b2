"""`chat` on a toy pair, piped and interactive: slash commands, saved files and Ctrl-C."""

import builtins
import io
import os
import re
import signal
import sys
from pathlib import Path

import pytest

import edgedecode
from edgedecode import BudgetExceeded, FinishReason, InputError, Message, Pair, SessionDetails, SessionOptions, WhenFull
from edgedecode.apps.chat import conversation as conversation_module
from edgedecode.apps.chat.conversation import Conversation
from edgedecode.apps.chat.input_history import InputHistory
from edgedecode.apps.chat.lines import PipedLines, TerminalLines
from edgedecode.apps.chat.slash import SLASHES
from edgedecode.apps.colour import KINDS, kind_of
from edgedecode.cli import main
from edgedecode.library.stored import Store, StoredModel
from edgedecode.memory.process_memory import memory_now
from edgedecode.memory.sizes import format_nbytes
from edgedecode.sampling.weights import sampling_table
from tests.apps.chat_script import OPTIONS, Script, conversation_of, piped, talk
from tests.apps.conftest import opened_toy
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
        ("/clear now", "usage: /clear"),
        ("/stats", "there is no answer yet"),
        ("/set sources green", "usage: /set sources [on|off]"),
        ("/undo", "the conversation is empty"),
        ("/retry", "the conversation is empty"),
        ("/set decoding nosuch", "there is no decoding 'nosuch'; there are: auto, fixed, plain, switch, "),
        ("/set temprature 1", "there is no setting 'temprature': did you mean temperature?"),
        ("/set nonsense", "there is no setting 'nonsense': /set lists the settings"),
        ("/set temperature hot", "temperature is 'hot': give a number"),
        ("/set temperature -1", "temperature"),
        ("/set top-k 1.5", "top_k is '1.5': give a whole number"),
        ("/set seed x", "seed is 'x': give a whole number from 0 on"),
        ("/set max_tokens 0", "max_tokens is '0': give a whole number from 1 on"),
        ("/pull", "usage: /pull NAME"),
        ("/pull demo", "demo is the bundled pack"),
        ("/model no-such-model", "no model 'no-such-model'"),
        ("/model demo", "this chat has one model"),
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


def test_sources_have_a_legend_and_are_shown_on_request(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk(chat, "/set sources", "hello")
    out, err = capsys.readouterr()
    assert "sources are not shown" in err
    assert "\x1b" not in out + err
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert {kind_of(name).name for name in ("model", "trim", "tree", "head")} == {"draft model"}
    assert {kind_of(name).name for name in ("suffix", "lookup", "of another package")} == {"lookup"}
    for kind in KINDS:
        assert f"  {kind.name:<11}  {kind.colour:<10}  {kind.origin}\n" in err
    talk(chat, "/set sources on", "hello")
    out, err = capsys.readouterr()
    assert "sources are shown" in err
    assert "\x1b[32m" in out
    talk(chat, "/set sources off", "hello")
    assert "\x1b" not in capsys.readouterr().out


def test_the_words_and_colours_of_sources_are_the_pages() -> None:
    web = Path(edgedecode.__file__).parents[1] / "apps" / "serve" / "web" / "src" / "sources.ts"
    if not web.is_file():
        pytest.skip("the page's sources are not here")
    text = web.read_text(encoding="utf-8")
    named = dict(re.findall(r'^  (\w+): "([\w ]+)",$', text.partition("KINDS")[2].partition("}")[0], re.MULTILINE))
    assert [*named.values()] == [kind.name for kind in KINDS]
    sources = dict(re.findall(r'^  (\w+): "(\w+)",$', text.partition("BY_SOURCE")[2].partition("}")[0], re.MULTILINE))
    assert {name: named[kind] for name, kind in sources.items() if name != "none"} == {
        name: kind_of(name).name for name in sources if name != "none"
    }


def test_settings_are_shown_and_changed(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk(chat, "hello", "/set temperature 0.5", "/set top-k 3", "/set seed 7", "/set max_tokens 5", "again")
    err = capsys.readouterr().err
    assert "temperature is 0.5\n" in err
    assert (chat.session.sampling.temperature, chat.session.sampling.top_k) == (0.5, 3)
    assert chat.session.stats.seed == 7
    assert chat.session.stats.tokens == 5
    assert len(chat.session.messages) == 4
    talk(chat, "/set decoding plain", "/set temperature default", "/set max_tokens default", "/set")
    err = capsys.readouterr().err
    rows = {line.split()[0]: line.split()[1] for line in err.splitlines()[-len(sampling_table()) - 4 :]}
    assert rows["decoding"] == "plain"
    assert (rows["temperature"], rows["top_k"], rows["max_tokens"]) == ("0", "3", "default")


def test_a_system_message_is_shown(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk(chat, "/system", "/system be kind", "/system")
    assert [line for line in capsys.readouterr().err.splitlines() if "clear" not in line] == [
        "there is no system message",
        "be kind",
    ]


def test_another_model_continues_the_conversation(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    chat = talk(conversation_of(toy), "hello")
    before, used = chat.session.messages, toy.budget.used_nbytes
    opened = list[str]()

    def open_model(name: str) -> tuple[Pair, SessionOptions]:
        opened.append(name)
        if name == "demo":
            raise BudgetExceeded("no memory", table="")
        return opened_toy(toy.root), OPTIONS

    chat.open_model = open_model
    talk(chat, "/model demo")
    assert "no memory" in capsys.readouterr().err
    assert opened == ["demo", str(toy.root)]  # the present one again
    assert toy.budget.used_nbytes < used  # it was closed first
    assert chat.session.messages == before
    talk(chat, "again", "/model")
    assert chat.session.messages[:2] == before
    assert "* toy" in capsys.readouterr().err
    chat.pair.close()


def test_models_are_pulled_and_named(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = StoredModel("tiny", Path(__file__), Store.LIBRARY)
    monkeypatch.setattr("edgedecode.library.named_models.pull", lambda _: (stored, True))
    monkeypatch.setattr("edgedecode.library.stores.stored_models", lambda: [stored])
    talk(chat, "/pull tiny", "/model")
    err = capsys.readouterr().err
    assert "tiny: pulled, " in err
    assert "/model tiny answers with it" in err
    assert "\n  tiny" in err


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
    chat = talk(conversation_of(toy, stops, max_tokens=10), "hello", "x" * 100, "/clear", "x" * 100, "hello")
    err = capsys.readouterr().err
    assert err.count("/clear starts over") == 1
    assert err.count("the message is longer than the context of 80 tokens: shorten it\n") == 1
    assert chat.last_finish is FinishReason.LENGTH
    assert len(chat.session.messages) == 2
    talk(conversation_of(toy, stops, max_tokens=1000), "hello")
    assert "the context is full: /clear starts over" in capsys.readouterr().err


def test_chat_that_outgrows_its_context_drops_the_oldest_turns(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    drops = SessionOptions(context=120, seed=1, details=SessionDetails(ignore_eos=True))
    messages = [f"hello {turn}" for turn in range(8)]
    chat = talk(conversation_of(toy, drops, max_tokens=10), *messages, "x" * 200)
    err = capsys.readouterr().err
    assert "the message is longer than the context of 120 tokens: shorten it" in err
    assert "/clear" not in err
    assert chat.session.messages[-2].content == "hello 7"
    assert len(chat.session.messages) < 16
    talk(conversation_of(toy, drops, max_tokens=1000), "hello")
    assert "the context is full: /clear starts over" in capsys.readouterr().err


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
        talk(chat, "/clear" if name == "reset" else "hello", None)
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


BLOCKS = [
    ('"""one\ntwo"""', "one\ntwo"),
    ('"""\none\n\ntwo\n"""', "one\n\ntwo"),
    ('"""one"""', "one"),
    ('"""""" ', ""),
    ('/system """be\nbrief"""', "/system be\nbrief"),
    ('"""/help\n"""', "//help"),
    ('say """', 'say """'),
]


@pytest.mark.parametrize(("text", "message"), BLOCKS)
def test_a_block_in_triple_quotes_is_one_message(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, f"{text}\nnext\n".encode())
    lines = PipedLines()
    assert [lines.read(), lines.read(), lines.read()] == [message, "next", None]
    typed = iter([*text.split("\n"), "next"])
    monkeypatch.setattr("builtins.input", lambda *prompt: next(typed))
    history = InputHistory()
    typing = TerminalLines(history)
    assert [typing.read(), typing.read()] == [message, "next"]
    assert history.entries[-1] == "next"


def test_a_block_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b'"""one\ntwo\n')
    with pytest.raises(InputError, match="does not end before standard input does"):
        PipedLines().read()


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
    swaps = [f"/clear\n/adapter {name}\nhello" for name in ("odd:0", "odd", "off")]
    piped(monkeypatch, "\n".join(["hello", *swaps, "/adapter nosuch"]).encode())
    assert main(["chat", "-m", str(pack_copy), "--runtime", "onnx", "-n", "12", "--temp", "0", *start]) == 0
    out, err = capsys.readouterr()
    first, zero, odd, off = out.splitlines()
    assert first == (odd if start else zero)
    assert odd != zero == off
    assert "the next answer uses the adapter odd" in err
    assert "the next answer uses no adapter" in err
    assert "the pack has no adapter 'nosuch'; it has: odd" in err
