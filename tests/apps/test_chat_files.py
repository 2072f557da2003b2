"""Conversations saved to files and loaded from them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgedecode import InputError, Message
from edgedecode.apps.chat.conversation import Conversation
from edgedecode.apps.chat.saved_messages import load_messages, save_messages
from tests.apps.chat_script import talk


def test_save_and_load_round_trip(chat: Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talk.json"
    talk(chat, "hello", f"/save {file}")
    messages = chat.session.messages
    talk(chat, "/clear", f"/load {file}")
    assert chat.session.messages == messages
    assert {path.name for path in tmp_path.iterdir()} == {"talk.json", "edgedecode.json"}
    assert "2 messages loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (b"", "holds no conversation (Expecting value"),
        (b"\xff", "holds no conversation ('utf-8' codec"),
        (b"[" * 100_000, "holds no conversation"),
        (b"3", "messages is '3': expected array"),
        (b'{"messages": {}}', "messages: expected array, got object"),
        (b'[{"role": "user"}]', "messages[0]: object missing required field content"),
        (b'[{"role": "user", "content": 3}]', "messages[0].content is '3': expected str"),
        (b'[{"role": "pirate", "content": "arr"}]', "'pirate' is unknown"),
        (b'{"messages": ' + b"1" * 5000 + b"}", "holds no conversation (Exceeds the limit"),
        (b'[{"role": "user", "content": "\\ud800"}]', "the content is not valid UTF-8"),
    ],
)
def test_load_of_a_bad_file_prints_one_line_and_keeps_the_conversation(
    content: bytes | None, expected: str, chat: Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(chat, "hello")
    messages = chat.session.messages
    capsys.readouterr()
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_bytes(content)
    talk(chat, f"/load {file}")
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
    assert chat.session.messages == messages


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_pipe_is_not_replaced_and_not_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless device such as /dev/zero would otherwise fill the memory."""
    monkeypatch.setattr("edgedecode.apps.chat.saved_messages.LARGEST_NBYTES", 100)
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        save_messages(pipe, [Message("user", "one")])
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


def test_save_messages_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "talk.json"
    save_messages(file, [Message("user", "one")])
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        save_messages(file, [Message("user", "two")])
    assert load_messages(file) == [Message("user", "one")]
    assert list(tmp_path.iterdir()) == [file]


def test_save_messages_writes_plain_json_and_load_takes_a_bare_list(tmp_path: Path) -> None:
    file, messages = tmp_path / "talk.json", [{"role": "user", "content": "grüß"}]
    save_messages(file, [Message("user", "grüß")])
    assert json.loads(file.read_text("utf-8")) == {"messages": messages}
    file.write_text(json.dumps(messages))
    assert load_messages(file) == [Message("user", "grüß")]
