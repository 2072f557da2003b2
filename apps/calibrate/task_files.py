"""Reads questions with answers from a jsonl file in four forms, recognised by their fields, and numbers in answers."""

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

from edgedecode.errors import InputError
from edgedecode.text.messages import Message
from edgedecode.text.printable import checked_text, file_text
from edgedecode.text.prompts import interleaved, read_messages, read_object

MARK = "####"
"""GSM8K's references have their number behind this mark, and models trained on them their answers."""
_NUMBER = re.compile(
    r"(?<![\w.])[$€£]?(?P<sign>[-+−]?)[$€£]?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]*)"
    r"(?P<rest>\.[0-9]+)?(?P<power>[eE][-+]?[0-9]{1,3}(?!\w))?"
)
_UNIT = re.compile(r"\s*[%°]?\s*[^\W\d_]*\.?\s*")
_SEARCHED = 100_000
"""Characters at the end of an answer that are searched."""
FORMS = (
    'ours {"family", "messages", "answer"}',
    'GSM8K {"question", "answer": "… #### 42"}',
    'MT-bench or Spec-Bench {"category", "turns"}',
    'question and answer {"question" or "prompt", "answer"}',
)
"""The forms of a line, for messages and help."""
NUMBERED = ("arithmetic", "word_problem")
"""Families of ours whose answer is its last number."""
_LONGEST_NAME = 60


class Kind(StrEnum):
    """How an answer is judged."""

    EXACT = "exact"
    """The answer is the reference, apart from white space."""
    NUMBER = "number"
    """The answer's last number is the reference's."""
    WRITTEN = "written"
    """There is no reference: the answer is written, not judged."""


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation to answer, and how its last answer is judged. `name` is unique among the tasks of a run."""

    name: str
    family: str
    kind: Kind
    history: tuple[Message, ...]
    turns: tuple[str, ...]
    """The user's messages, which are answered in order."""
    reference: str = ""


def read_tasks(path: Path, *, limit: int | None = None) -> list[Task]:
    """Return the tasks of a file, at most `limit`, interleaved by family. Raises InputError with the line."""
    try:
        text = file_text(path)
    except OSError as error:
        raise InputError(f"the tasks {path} cannot be read: {error.strerror or error}") from None
    return interleaved(parse_tasks(text, str(path), label=path.stem), name=lambda task: task.family)[:limit]


def parse_tasks(text: str, name: str, *, label: str = "task") -> list[Task]:
    """Read the content of a file, called `name` in errors; its tasks are named by `label` and their line.

    Raises InputError.
    """
    lines = enumerate(text.removeprefix("\ufeff").split("\n"), start=1)
    tasks = [_task(line, f"{name}, line {number}", f"{label}:{number}") for number, line in lines if line.strip()]
    if not tasks:
        raise InputError(f"{name} is empty: give a task in each line, in one of these forms: {'; '.join(FORMS)}")
    return tasks


def _task(line: str, where: str, name: str) -> Task:
    """Read a line. Raises InputError for another form, text that no tokenizer accepts, and an empty question."""
    value, label = read_object(line, where), name.partition(":")[0]
    try:
        if "messages" in value:
            task = _ours(value, label)
        elif "turns" in value:
            task = _bench(value, label)
        elif "answer" in value and ("question" in value or "prompt" in value):
            marked = isinstance(value["answer"], str) and MARK in value["answer"]
            task = (_gsm8k if marked and "question" in value else _question)(value, label)
        else:
            fields = ", ".join(sorted(each[:_LONGEST_NAME] for each in value)[:8]) or "none"
            raise InputError(f"it has none of the forms of tasks (its fields: {fields}): {'; '.join(FORMS)}")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for text in (task.family, task.reference, *task.turns):
        checked_text(text, where)
    if not all(turn.strip() for turn in task.turns):
        raise InputError(f"{where} has an empty question: a user message needs text")
    return replace(task, name=name)


def _ours(value: dict[str, Any], label: str) -> Task:
    messages = read_messages(value["messages"], "messages")
    if messages[-1].role != "user":
        raise InputError(f"the last message must be the user's, not the {messages[-1].role}'s")
    family = _family(value, label)
    reference = _reference(value["answer"]) if value.get("answer") is not None else ""
    kind = Kind.WRITTEN if not reference else Kind.NUMBER if family in NUMBERED else Kind.EXACT
    return Task("", family, kind, tuple(messages[:-1]), (messages[-1].content,), reference)


def _bench(value: dict[str, Any], label: str) -> Task:
    turns = value["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise InputError("turns must be a list of strings, at least one")
    return Task("", _family(value, label), Kind.WRITTEN, (), tuple(turns))


def _gsm8k(value: dict[str, Any], label: str) -> Task:
    number = _string(value, "answer").rpartition(MARK)[2].strip()
    if not is_number(number):
        raise InputError(f"there is no number behind {MARK}, but {number[:_LONGEST_NAME]!r}")
    return Task("", _family(value, label), Kind.NUMBER, (), (_string(value, "question"),), number)


def _question(value: dict[str, Any], label: str) -> Task:
    reference = _reference(value["answer"])
    kind = Kind.NUMBER if is_number(reference) else Kind.EXACT
    asked = _string(value, "question" if "question" in value else "prompt")
    return Task("", _family(value, label), kind, (), (asked,), reference)


def _family(value: dict[str, Any], default: str) -> str:
    family = value.get("family", value.get("category", default))
    if not isinstance(family, str) or not family.strip():
        raise InputError("its family is not a name")
    return family


def _string(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise InputError(f"{name} must be a string")
    return found


def _reference(value: object) -> str:
    """Return an answer to compare with; a number stands for its digits."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError("answer must be a string that is not empty, or a number")
    return value


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, or the first one behind its last mark; None if there is none."""
    text = text[-_SEARCHED:]
    if MARK in text and (marked := _numbers(text.rpartition(MARK)[2])):
        return marked[0]
    found = _numbers(text)
    return found[-1] if found else None


def is_number(text: str) -> bool:
    """Tell whether a text is a number and nothing else but a currency or a unit."""
    text = text.strip()
    found = _NUMBER.match(text)
    return found is not None and _value(found) is not None and _UNIT.fullmatch(text, found.end()) is not None


def _numbers(text: str) -> list[Decimal]:
    return [value for found in _NUMBER.finditer(text) if (value := _value(found)) is not None]


def _value(found: re.Match[str]) -> Decimal | None:
    """Return a match's value; None for a match without digits."""
    whole, rest = found["whole"].replace(",", ""), found["rest"] or ""
    if not whole and not rest:
        return None
    sign = "-" if found["sign"] in ("-", "−") else ""
    return Decimal(f"{sign}{whole or 0}{rest}{found['power'] or ''}")
