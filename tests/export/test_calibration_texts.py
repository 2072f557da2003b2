"""Texts for calibration: conversations and plain text."""

import json
from pathlib import Path

import pytest

from edgedecode.errors import ExportError
from edgedecode.export.recipes.calibration_texts import read_texts
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer
from tests.conftest import Refusal

pytestmark = pytest.mark.export

ROW = {"messages": [{"role": "user", "content": "What is it?"}], "answer": "A fox in the garden."}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "scored.txt"
    path.write_text("A hen and a fox went to the harbor, and the fox was sad. " * 4)
    return path


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.jsonl"
    path.write_text("\n".join(json.dumps(ROW) for _ in range(4)))
    return path


def test_export_refuses_a_missing_text(llama: Path, tmp_path: Path, refusal: Refusal) -> None:
    words = ["export", "--target", str(llama), "--out", str(tmp_path / "pack"), "--bits", "4"]
    assert "nowhere.txt cannot be read" in refusal(*words, "--calibrate-text", "nowhere.txt")


def read(path: Path, folder: Path, *, template: bool = True) -> tuple[tuple[int, ...], ...]:
    found = ChatTemplate((folder / "chat_template.jinja").read_text()) if template else None
    return read_texts(path, tokenizer=Tokenizer.from_file(folder / "tokenizer.json"), template=found, context=256)


def test_a_conversation_is_its_prompt_and_its_answer(llama: Path, calibration: Path) -> None:
    tokenizer = Tokenizer.from_file(llama / "tokenizer.json")
    texts = read(calibration, llama)
    assert len(texts) == 4
    assert tokenizer.decode(texts[0]) == f"user: What is it?\n{ROW['answer']}"


def test_plain_text_is_cut_to_the_context(llama: Path, text: Path) -> None:
    texts = read(text, llama)
    assert all(1 < len(found) <= 256 for found in texts)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "contains no text"),
        ("a.jsonl", "\n", "contains no text"),
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", json.dumps(ROW) + "\n[]", "line 2 is not a JSON object"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "line 1: a message has no content"),
        ("a.txt", b"\xff\xfe", "is not valid UTF-8"),
    ],
)
def test_read_texts_refuses_invalid_files(
    name: str, content: str | bytes, message: str, llama: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ExportError, match=message):
        read(path, llama)


def test_read_texts_of_conversations_needs_a_template(llama: Path, calibration: Path) -> None:
    with pytest.raises(ExportError, match="no chat template"):
        read(calibration, llama, template=False)
