"""Text files given by the user: the scored part, and refusals that name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedecode.errors import InputError
from edgedecode.export.trim.trim_texts import (
    bundled_categories,
    bundled_prompts,
    read_categories,
    read_text_file,
)
from edgedecode.testing import byte_tokenizer
from edgedecode.text.prompts import interleaved

TOKENIZER = byte_tokenizer()


def test_read_text_file_splits_plain_text_into_pieces(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a" * 600)
    texts = read_text_file(file, tokenizer=TOKENIZER, context=512)
    assert [len(text.tokens) for text in texts] == [256, 256, 88]
    assert len({text.group for text in texts}) == 3


def test_read_text_file_scores_the_assistants_part_of_conversations(tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    messages = [("user", "u1"), ("assistant", "answer one"), ("user", "u2"), ("assistant", "answer two")]
    rows = [
        {"messages": [{"role": role, "content": content} for role, content in messages]},
        {"messages": [{"role": "user", "content": "u3"}], "answer": "answer three"},
        {"text": "bare"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    texts = read_text_file(file, tokenizer=TOKENIZER, context=512)
    assert [TOKENIZER.decode(text.scored) for text in texts] == ["answer one", "answer two", "answer three", "are"]
    assert [text.group for text in texts] == [0, 0, 1, 2]
    before = TOKENIZER.decode(texts[1].tokens[: texts[1].start], skip_special=False)
    assert before.endswith("u2<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "has no text to count"),
        ("a.txt", b"\x80\x04", r"a\.txt is not valid UTF-8: byte 0x80"),
        ("a.txt", b"ab\0cd", r"a\.txt is not text: it has a zero byte at character 2"),
        ("a.jsonl", b"\n\n", "has no text to count"),
        ("a.jsonl", b'{"text": "x y"}\nhello', r"a\.jsonl, line 2 is not JSON"),
        ("a.jsonl", b'{"prompt": "x"}', "line 1 has neither messages nor a text; prompts belong to --calibrate"),
        (
            "a.jsonl",
            b'{"messages": [{"role": "user", "content": "x"}]}',
            "line 1 has neither an assistant's message nor",
        ),
        (
            "a.jsonl",
            b'{"messages": [{"role": "bard", "content": "x"}]}',
            r"^\S+a\.jsonl, line 1: message role 'bard' is unknown",
        ),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"messages": [{"role": "user", "content": 3}], "answer": "y"}',
            r"^\S+a\.jsonl, line 2: the content of a user message is int",
        ),
    ],
)
def test_read_text_file_refuses_invalid_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_text_file(tmp_path / name, tokenizer=TOKENIZER, context=512)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "has no rows"),
        ('{"messages": []}', "line 1 has no category"),
        ('{"category": "calibration"}', "category name 'calibration' is reserved"),
        ('{"category": "a"}', "messages must be a list"),
        (
            '{"category": "a", "messages": [{"role": "assistant", "content": "x"}]}',
            "the last message must be the user's",
        ),
        (
            '{"category": "a", "messages": [{"role": "user", "content": "x"}], "answer": 3}',
            "the answer must be a string",
        ),
        (
            '{"category": "a", "messages": [{"role": "user", "content": " "}], "answer": "x"}',
            r"rows\.jsonl, line 1 has an empty turn",
        ),
    ],
)
def test_read_categories_refuses_invalid_rows(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(line)
    with pytest.raises(InputError, match=message):
        read_categories(tmp_path / "rows.jsonl")


def test_bundled_categories() -> None:
    rows = bundled_categories()
    assert set(dict.fromkeys(row.category for row in rows)) == {"code", "math", "prose", "structured", "multilingual"}
    answers = [row.answer for row in rows if row.category == "multilingual"]
    assert len(answers) == 24
    text = "".join(answer or "" for answer in answers)
    assert all(letter in text for letter in "的のшسहñüλ은ท")
    assert not any(row.answer for row in rows if row.category != "multilingual")
    prompts = bundled_prompts()
    assert len({prompt.family for prompt in prompts}) == 12
    small_families = ("fact", "smalltalk")  # their prompts are too few to be kept apart
    calibration_turns = {prompt.turns for prompt in prompts if prompt.family not in small_families}
    assert not calibration_turns & {row.prompt.turns for row in rows}, (
        "a prompt is used for calibration and for a category"
    )


def test_interleaved_takes_the_first_of_each_name_then_the_second() -> None:
    assert interleaved(["a1", "a2", "a3", "b1", "b2"], name=lambda row: row[0]) == ["a1", "b1", "a2", "b2", "a3"]
    assert interleaved(["a1", "a2", "a3", "b1"], name=lambda row: row[0], most=2) == ["a1", "b1", "a2"]
