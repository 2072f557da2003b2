"""Task files of every form, errors that name the file and the line, and how answers are judged."""

import json
from collections import Counter
from pathlib import Path

import pytest

from edgedecode import InputError, Message
from edgedecode.apps.calibrate.arms import is_correct
from edgedecode.apps.calibrate.task_files import FORMS, Kind, Task, is_number, last_number, parse_tasks, read_tasks
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
    lines({"task_id": "a/1", "prompt": "def f():", "test": "x", "entry_point": "f"}): "has none of the forms of tasks",
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
    said = str(raised.value)
    assert ("tasks.jsonl" in said, message in said, "\n" in said) == (True, True, False)
    assert "none of the forms" not in message or all(form in said for form in FORMS)


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


# -- how answers are judged -------------------------------------------------------------------------------------------

NUMBERS = [
    *(("The answer is 34.", "34"), ("77 + 47 = 124.", "124"), ("It costs $1,234.50 in all.", "1234.5")),
    *(("1,234,567 people", "1234567"), ("the list 3, 4, 5", "5"), ("-7", "-7"), ("−7 degrees", "-7")),
    *(("it fell by -$5", "-5"), ("it fell by $-5", "-5"), ("10-3=7", "7"), ("between 5-9", "9")),
    *(("+12", "12"), (".5 of it", "0.5"), ("1.5e3 and nothing else", "1500"), ("5kg", "5"), ("50%", "50")),
    *(("16 - 7 = <<16-7=9>>9\n#### 18\nso 3 steps", "18"), ("#### 1,018 apples", "1018")),
    *(("step 4: done ####", "4"), ("007", "7"), ("no number", None), ("", None), ("x2 and v1.2", None)),
    *(("12,34", "34"), ("about 1e3 or 2.5e-1", "0.25"), ("in 2024, 12 apples.", "12"), ("1,2,3.", "3")),
]


@pytest.mark.parametrize(("text", "number"), NUMBERS, ids=[text for text, _ in NUMBERS])
def test_last_number(text: str, number: str | None) -> None:
    found = last_number(text)
    assert (found is None) == (number is None)
    assert found is None or found == last_number(number or "")


def test_is_number() -> None:
    assert all(map(is_number, ["18", "1,018", "-3.5", "$5", "50%", "12 km", " 7. ", "3 apples"]))
    assert not any(map(is_number, ["", "Paris", "3 and 4", "3/4", "the 5th", "1.2.3", "5 red apples"]))


JUDGED = [
    (Kind.EXACT, "Paris is big.", " Paris\n is  big. ", True),
    (Kind.EXACT, "Paris is big.", "paris is big.", False),
    (Kind.EXACT, "Paris", "", False),
    (Kind.NUMBER, "The answer is 34.", "He has 20 + 15 - 1 = 34 candles", True),
    (Kind.NUMBER, "The answer is 34.", "34 of 35", False),
    (Kind.NUMBER, "1,018", "#### 1018.0", True),
    (Kind.NUMBER, "34", "many", False),
    (Kind.WRITTEN, "", "as the target  has it", True),
    (Kind.WRITTEN, "", "anything", False),
]


@pytest.mark.parametrize(("kind", "reference", "answer", "correct"), JUDGED)
def test_judgement(kind: Kind, reference: str, answer: str, correct: bool) -> None:
    task = Task("tasks:1", "family", kind, (), ("Question?",), reference)
    assert is_correct(task, answer, by_target="as the target has it") is correct
