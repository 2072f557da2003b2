"""Task files of every form, and errors that name the file and the line."""

import json
from collections import Counter
from pathlib import Path

import pytest

from edgedecode import InputError, Message
from edgedecode.apps.calibrate.arms import is_correct
from edgedecode.apps.calibrate.task_files import FORMS, Kind, Task, parse_tasks, read_tasks
from tests.shared_paths import SHARED, needs_shared

OURS = {"family": "fact", "messages": [{"role": "user", "content": "How many days?"}], "answer": "Seven."}
GSM8K = {"question": "How many eggs?", "answer": "16 - 7 = <<16-7=9>>9.\n#### 1,018"}
BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Shorter."], "reference": ["none"]}
QUESTION = {"question": "Capital of France?", "answer": "Paris"}


def lines(*values: object) -> str:
    return "\n".join(json.dumps(value) for value in values) + "\n"


def one(value: object) -> Task:
    (task,) = parse_tasks(lines(value), "tasks.jsonl", label="tasks")
    return task


def test_our_form() -> None:
    assert one(OURS) == Task("tasks:1", "fact", Kind.EXACT, (), ("How many days?",), "Seven.")
    assert one({**OURS, "family": "word_problem"}).kind is Kind.NUMBER
    assert one({**OURS, "answer": None}).kind is Kind.WRITTEN
    history = [{"role": "system", "content": "Be brief."}, *OURS["messages"]]  # type: ignore[misc]
    assert one({**OURS, "messages": history}).history == (Message("system", "Be brief."),)


def test_gsm8k() -> None:
    assert one(GSM8K) == Task("tasks:1", "tasks", Kind.NUMBER, (), ("How many eggs?",), "1,018")


def test_bench_form_is_not_judged() -> None:
    task = one(BENCH)
    assert (task.family, task.turns, task.kind) == ("writing", ("Write a poem.", "Shorter."), Kind.WRITTEN)


def test_questions_and_answers() -> None:
    assert one(QUESTION) == Task("tasks:1", "tasks", Kind.EXACT, (), ("Capital of France?",), "Paris")
    assert one({"prompt": "1 + 1 =", "answer": 2}).kind is Kind.NUMBER
    assert one({"prompt": "1 + 1 =", "answer": "#### 2"}).kind is Kind.EXACT
    assert one({**QUESTION, "category": "cities"}).family == "cities"


BAD = {
    "": "is empty",
    "\n \n": "is empty",
    lines(QUESTION) + '{"question": "Capital of': "line 2 is not JSON",
    lines(QUESTION) + "[1, 2]": "line 2 is not a JSON object",
    lines({"text": "a story"}): "has none of the forms of tasks (its fields: text): ours {",
    lines({}): "(its fields: none)",
    lines({"question": "a", "answer": ""}): "answer must be a string that is not empty",
    lines({"question": "a", "answer": True}): "answer must be a string that is not empty",
    lines({"question": 3, "answer": "b"}): "question must be a string",
    lines({"question": " ", "answer": "b"}): "an empty question",
    lines({"question": "a\ud800", "answer": "b"}): "not valid UTF-8",
    lines({"question": "a", "answer": "#### many"}): "no number behind ####",
    lines({**OURS, "family": 3}): "its family is not a name",
    lines({**OURS, "messages": []}): "messages must be a list",
    lines({**OURS, "messages": [{"role": "assistant", "content": "Hi."}]}): "the last message must be the user's",
    lines({**BENCH, "turns": []}): "turns must be a list of strings",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=BAD.values())
def test_bad_content_is_one_line_that_names_the_file(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_tasks(text, "tasks.jsonl")
    assert "tasks.jsonl" in str(raised.value)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_unknown_form_shows_every_form() -> None:
    with pytest.raises(InputError) as raised:
        parse_tasks(lines({"text": "a"}), "tasks.jsonl")
    assert all(form in str(raised.value) for form in FORMS)


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\ufeff" + lines(QUESTION, QUESTION), encoding="utf-8")
    assert [task.name for task in read_tasks(path)] == ["tasks:1", "tasks:2"]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "zero.jsonl").write_bytes(b"{}\0")
    for name, message in (
        *(("none.jsonl", "none.jsonl cannot be read"), ("bytes.jsonl", "not valid UTF-8")),
        *(("zero.jsonl", "not text"), (".", "cannot be read")),
    ):
        with pytest.raises(InputError, match=message):
            read_tasks(tmp_path / name)


@needs_shared
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("data/gsm8k_test.jsonl", {Kind.NUMBER: 1319}),
        ("data/spec_bench.jsonl", {Kind.WRITTEN: 480}),
        ("demo-pair/heldout.jsonl", {Kind.EXACT: 500, Kind.NUMBER: 100}),
    ],
)
def test_real_files(name: str, kinds: dict[Kind, int]) -> None:
    tasks = read_tasks(SHARED / name)
    assert Counter(task.kind for task in tasks) == kinds
    assert len(read_tasks(SHARED / name, limit=10)) == 10
    for task in tasks:
        if task.kind in (Kind.EXACT, Kind.NUMBER):
            assert is_correct(task, task.reference, by_target="")
