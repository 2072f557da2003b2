"""Tasks: the forms of files, and what makes an answer correct."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from edgedecode import InputError
from edgedecode.apps.tasks.scoring import is_correct, last_number
from edgedecode.apps.tasks.task_files import Kind, Task, read_tasks
from tests.shared_paths import SHARED

OURS = {"family": "fact", "messages": [{"role": "user", "content": "2 + 2 ="}], "answer": "4"}
FORMS = {
    "ours": (OURS, Kind.EXACT, "4"),
    "number": ({**OURS, "family": "arithmetic"}, Kind.NUMBER, "4"),
    "no answer": ({"family": "story", "messages": OURS["messages"]}, Kind.WRITTEN, ""),
    "gsm8k": ({"question": "How many?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}, Kind.NUMBER, "2"),
    "mbpp": (
        {"task_id": "Mbpp/1", "prompt": "def f():", "test": "assert f()", "entry_point": "f"},
        Kind.CODE,
        "assert f()",
    ),
    "mt-bench": ({"question_id": 1, "category": "writing", "turns": ["a", "b"]}, Kind.WRITTEN, ""),
    "plain": ({"prompt": "Capital of Norway?", "answer": "Oslo"}, Kind.EXACT, "Oslo"),
}


def task(kind: Kind, reference: str) -> Task:
    return Task("t", "t", kind, (), ("q",), reference)


@pytest.mark.parametrize("name", FORMS)
def test_tasks_of_every_form_are_recognised(name: str, tmp_path: Path) -> None:
    value, kind, reference = FORMS[name]
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(value) + "\n\n", encoding="utf-8")
    (found,) = read_tasks(file)
    assert (found.kind, found.reference) == (kind, reference)


@pytest.mark.parametrize(
    ("file", "kind", "count"),
    [
        ("data/gsm8k_test.jsonl", Kind.NUMBER, 1319),
        ("data/mbpp_sanitized.jsonl", Kind.CODE, 427),
        ("data/spec_bench.jsonl", Kind.WRITTEN, 480),
        ("demo-pair/heldout.jsonl", Kind.EXACT, 600),
    ],
)
def test_tasks_of_public_sets_are_read(file: str, kind: Kind, count: int) -> None:
    path = SHARED / file
    if not path.is_file():
        pytest.skip("the shared data is not on this machine")
    found = read_tasks(path)
    assert len(found) == count
    assert {each.kind for each in found} - {Kind.NUMBER} <= {kind}
    assert len(read_tasks(path, limit=10)) == 10


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"{}", "line 1 has none of the forms"),
        (b'{"question": 3, "answer": "x"}', "question must be text"),
        (b'{"turns": []}', "turns must be a list of texts"),
        (b'{"question": "a", "answer": "b"}\nnonsense', "line 2 is not JSON"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_tasks_that_cannot_be_read_are_refused_with_their_line(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_tasks(file)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 1,234.", "1234"),
        ("$3.50 each, so $7", "7"),
        ("-4", "-4"),
        ("−4 degrees", "-4"),
        ("about 1e3 or 2.5e-1", "0.25"),
        (".5", "0.5"),
        ("#### 18", "18"),
        ("in 2024, 12 apples.", "12"),
        ("none", None),
        ("1,2,3.", "3"),
        ("1,234,567", "1234567"),
    ],
)
def test_last_number_of_a_text(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


def test_answers_are_correct_by_their_kind() -> None:
    assert is_correct(task(Kind.EXACT, "Oslo is  in\nNorway."), " Oslo is in Norway. ")
    assert not is_correct(task(Kind.EXACT, "Oslo"), "oslo")
    assert is_correct(task(Kind.NUMBER, "18"), "She has 18.0 dollars.")
    assert not is_correct(task(Kind.NUMBER, "18"), "She has 18 of 20.")
    assert not is_correct(task(Kind.NUMBER, "18"), "eighteen")
    assert is_correct(task(Kind.WRITTEN, ""), "anything") is None
