"""Task files of every form, and errors that name the file and the line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from edgedecode import InputError, Message
from edgedecode.apps.tasks.code_tasks import CodeTests, program_of
from edgedecode.apps.tasks.scoring import judge
from edgedecode.apps.tasks.task_files import FORMS, Kind, Task, parse_tasks, read_tasks, tasks_digest
from tests.shared_paths import SHARED, needs_shared

OURS = {"family": "fact", "messages": [{"role": "user", "content": "How many days?"}], "answer": "Seven."}
GSM8K = {"question": "How many eggs?", "answer": "16 - 7 = <<16-7=9>>9.\n#### 1,018"}
HUMAN_EVAL = {
    "task_id": "HumanEval/2",
    "prompt": "import math\n\ndef half(x: float) -> float:\n    '''Half of x, rounded down.'''\n",
    "entry_point": "half ",
    "canonical_solution": "    return math.floor(x / 2)\n",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n    assert half(4) == math.floor(2.5)\n",
}
MBPP = {
    "task_id": 2,
    "text": "Write a function to add one.",
    "code": "def plus(x):\n    return x + 1",
    "test_list": ["assert plus(1) == 2", "assert math.isclose(plus(2.5), 3.5)"],
    "test_setup_code": "",
}
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


def test_human_eval() -> None:
    task = one(HUMAN_EVAL)
    assert task.kind is Kind.CODE
    assert task.code is not None
    assert (task.code.names, task.code.prelude) == (("half",), "import math\n\n")
    assert str(HUMAN_EVAL["prompt"]).rstrip() in task.turns[0]
    assert judge(task, str(HUMAN_EVAL["canonical_solution"])).correct
    assert judge(task, task.reference).correct


def test_mbpp_with_a_list_of_tests() -> None:
    task = one(MBPP)
    assert task.code is not None
    assert (task.code.names, task.code.prelude) == (("plus",), "import math\n")
    assert "assert plus(1) == 2" in task.turns[0]
    assert judge(task, task.reference).correct


def test_bench_form_is_not_judged() -> None:
    task = one(BENCH)
    assert (task.family, task.turns, task.kind) == ("writing", ("Write a poem.", "Shorter."), Kind.WRITTEN)
    assert judge(task, "A poem.").correct is None


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
    lines(QUESTION, BENCH): "line 2 has another form than the lines before it",
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
    lines({**HUMAN_EVAL, "entry_point": "a b"}): "the entry point 'a b' is not a name",
    lines({**HUMAN_EVAL, "test": "def check(:"}): "not Python",
    lines({**MBPP, "test_list": []}): "test_list must be",
    lines({**MBPP, "test_list": ["assert 1 == 1"]}): "call no function",
    lines({**MBPP, "text": None}): "text must be a string",
    lines({"question": "a" * (1 << 20), "answer": "b"}): "line 1 has 10",
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


def test_several_files_have_unique_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    paths = [tmp_path / "tasks.jsonl", tmp_path / "a" / "tasks.jsonl"]
    for path in paths:
        path.write_text("\ufeff" + lines(QUESTION, QUESTION), encoding="utf-8")
    tasks = read_tasks(*paths)
    assert [task.name for task in tasks] == ["tasks:1", "tasks-2:1", "tasks:2", "tasks-2:2"]
    assert tasks_digest(tasks) == tasks_digest(read_tasks(*paths)) != tasks_digest(tasks[:3])
    with pytest.raises(InputError, match="named twice"):
        read_tasks(paths[0], paths[0])


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "zero.jsonl").write_bytes(b"{}\0")
    for name, message in (
        *(("none.jsonl", "none.jsonl cannot be read"), ("bytes.jsonl", "not valid UTF-8")),
        *(("zero.jsonl", "not text"), (".", "cannot be read")),
    ):
        with pytest.raises(InputError, match=message):
            read_tasks(tmp_path / name)


# -- the program in an answer ----------------------------------------------------------------------------------------

START = CodeTests("import math\n\ndef f(x):\n    '''Add one.'''\n", ("f",), "", "import math\n\n")
BODY = "def f(x):\n    return x + 1"
ANSWERS = {
    "fenced": f"Here it is:\n```python\n{BODY}\n```\nIt adds one.",
    "fenced without a language": f"```\n{BODY}\n```",
    "fenced with tildes": f"~~~py\n{BODY}\n~~~",
    "fence left open": f"```python\n{BODY}\n",
    "second block": f"```sh\npip install x\n```\nthen\n```python\n{BODY}\n```",
    "bare": BODY,
    "among prose": f"Sure, here is the function.\n\n{BODY}\n\nThis function adds one to x.",
    "continuation": "    return x + 1\n",
    "continuation without its first spaces": "return x + 1",
    "continuation indented by two": "  y = x\n  if y:\n    return y + 1\n  return 1\n",
    "continuation with tabs": "\ty = x\n\tif True:\n\t\treturn y + 1\n",
    "continuation and prose": "    return x + 1\n\nThis returns x + 1.\n\ndef f(x): pass",
    "continuation with a helper": "    return g(x)\n\ndef g(x):\n    return x + 1\n",
    "continuation in a fence": "```python\n    return x + 1\n```",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_program_is_found_in_the_answer(answer: str) -> None:
    space: dict[str, object] = {}
    exec(program_of(ANSWERS[answer], START), space)
    assert space["f"](2) == 3  # type: ignore[operator]


@pytest.mark.parametrize("answer", ["", "```", "I cannot do that.", "def f(x", "```python\n```", "((" * 4000])
def test_answers_without_a_program_are_no_error(answer: str) -> None:
    for code in (START, CodeTests("", ("f",), "")):
        assert isinstance(program_of(answer, code), str)


# -- real files ------------------------------------------------------------------------------------------------------


@needs_shared
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("data/gsm8k_test.jsonl", {Kind.NUMBER: 1319}),
        ("data/mbpp_sanitized.jsonl", {Kind.CODE: 427}),
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
            assert judge(task, task.reference).correct


@needs_shared
def test_solutions_of_mbpp_pass() -> None:
    """All but 4 of the 427 do: a solution defines `check` itself, and three mix tabs and spaces."""
    path = SHARED / "data/mbpp_sanitized.jsonl"
    solutions = [json.loads(line)["canonical_solution"] for line in path.read_text(encoding="utf-8").splitlines()]
    for task, solution in list(zip(read_tasks(path), solutions, strict=True))[1::20]:
        assert judge(task, solution).correct, task.name
