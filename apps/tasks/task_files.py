"""Read tasks from a jsonl file, in any of the forms that public evaluation sets have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from edgedecode import InputError, Message
from edgedecode.text.printable import checked_text, decoded_text
from edgedecode.text.prompts import interleaved, read_messages, read_object

__all__ = ["FORMS", "Kind", "Task", "read_tasks"]

FORMS = """\
ours            {"family": ..., "messages": [{"role": ..., "content": ...}], "answer": ...}
GSM8K           {"question": ..., "answer": "... #### 18"}
MBPP, HumanEval {"task_id": ..., "prompt": ..., "test": ..., "entry_point": ...}
MT-bench        {"turns": [...], "category": ...}, answers are written but not scored
plain           {"question": ..., "answer": ...} or {"prompt": ..., "answer": ...}"""
_MOST_NBYTES = 1 << 28
"""Largest file."""


class Kind(StrEnum):
    """What makes an answer correct."""

    EXACT = "exact"
    """The reference, apart from spaces at the ends and between words."""
    NUMBER = "number"
    """The answer's last number is the reference's."""
    CODE = "code"
    """The code passes its tests."""
    WRITTEN = "written"
    """There is no reference."""


@dataclass(frozen=True, slots=True)
class Task:
    """A question with its earlier messages, and its reference."""

    name: str
    family: str
    kind: Kind
    history: tuple[Message, ...]
    turns: tuple[str, ...]
    """The user's messages, which are answered in order; the last answer is scored."""
    reference: str = ""
    entry_point: str = ""
    """The function that code tests call."""


def read_tasks(path: Path, *, limit: int | None = None) -> list[Task]:
    """Return the file's tasks, at most `limit`, evenly from every family. Raises InputError with the line's number."""
    try:
        if path.stat().st_size > _MOST_NBYTES:
            raise InputError(f"{path} is larger than {_MOST_NBYTES >> 20} MiB: give a part of it")
        text = decoded_text(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"the tasks {path} cannot be read: {error.strerror or error}") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty: give one task per line, in one of these forms:\n{FORMS}")
    tasks = [_task(read_object(line, _where(path, number)), _where(path, number), number) for number, line in lines]
    return interleaved(tasks, name=lambda task: task.family)[:limit]


def _where(path: Path, number: int) -> str:
    return f"{path}, line {number}"


def _task(value: Mapping[str, object], where: str, number: int) -> Task:
    for fits, read in _READERS:
        if fits(value):
            task = read(value, where, number)
            for text in (task.family, task.reference, *task.turns):
                checked_text(text, where)
            if not all(turn.strip() for turn in task.turns):
                raise InputError(f"{where} has an empty question")
            return task
    raise InputError(f"{where} has none of the forms that tasks have:\n{FORMS}")


def _messages(value: Mapping[str, object], where: str, number: int) -> Task:
    *history, last = read_messages(value["messages"], where)
    if last.role != "user":
        raise InputError(f"{where}: the last message must be the user's, not of the role {last.role!r}")
    family, reference = _text(value, "family", where, default="tasks"), _text(value, "answer", where, default="")
    kind = Kind.NUMBER if family in _NUMBERS else Kind.EXACT
    return Task(
        f"{family}/{number}", family, kind if reference else Kind.WRITTEN, (*history,), (last.content,), reference
    )


def _turns(value: Mapping[str, object], where: str, number: int) -> Task:
    turns = value["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise InputError(f"{where}: turns must be a list of texts")
    family = _text(value, "category", where, default="turns")
    return Task(f"{family}/{number}", family, Kind.WRITTEN, (), tuple(turns))


def _code(value: Mapping[str, object], where: str, _number: int) -> Task:
    name, prompt, tests, entry = (_text(value, key, where) for key in ("task_id", "prompt", "test", "entry_point"))
    asked = f"Complete this Python function. Answer with the code only.\n\n{prompt}"
    return Task(name, name.partition("/")[0] or "code", Kind.CODE, (), (asked,), tests, entry)


def _question(value: Mapping[str, object], where: str, number: int) -> Task:
    question = _text(value, "question" if "question" in value else "prompt", where)
    answer = _text(value, "answer", where)
    if _FINAL in answer:
        return Task(f"gsm8k/{number}", "gsm8k", Kind.NUMBER, (), (question,), answer.rpartition(_FINAL)[2].strip())
    family = _text(value, "family", where, default="questions")
    return Task(f"{family}/{number}", family, Kind.EXACT, (), (question,), answer)


def _text(value: Mapping[str, object], key: str, where: str, *, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str):
        raise InputError(f"{where}: {key} must be text")
    return found


_FINAL = "#### "
"""Before the final number of a GSM8K answer."""
_NUMBERS = {"arithmetic", "word_problem"}
"""Families of ours in which the last number decides."""
_READERS: list[tuple[Callable[[Mapping[str, object]], bool], Callable[[Mapping[str, object], str, int], Task]]] = [
    (lambda value: "messages" in value, _messages),
    (lambda value: "turns" in value, _turns),
    (lambda value: {"task_id", "prompt", "test", "entry_point"} <= value.keys(), _code),
    (lambda value: "answer" in value and ("question" in value or "prompt" in value), _question),
]
