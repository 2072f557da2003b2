"""Read prompts from a jsonl file, in our format or Spec-Bench's."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from edgedecode.errors import InputError

from .messages import Message
from .printable import checked_text, decoded_text, file_bytes

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to answer: the earlier messages, and the user's turns, which are answered in order."""

    family: str
    history: tuple[Message, ...]
    turns: tuple[str, ...]


def read_prompts(path: Path, *, family: str | None = None) -> list[Prompt]:
    """Read a jsonl file with `family` and `messages`, or Spec-Bench's `category` and `turns`.

    family: the default for lines without one; None: every line must have one. Raises InputError or OSError.
    """
    return parse_prompts(file_bytes(path), str(path), family=family)


def interleaved(rows: Iterable[_Row], *, name: Callable[[_Row], str], most: int | None = None) -> list[_Row]:
    """Return at most `most` rows of each name: the first row of each, then the second of each, and so on."""
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return [
        row for some in zip_longest(*(group[:most] for group in groups.values())) for row in some if row is not None
    ]


def parse_prompts(data: bytes, name: str, *, family: str | None = None) -> list[Prompt]:
    """Read the content of such a file, called `name` in errors. Raises InputError naming the line."""
    lines = enumerate(decoded_text(data, name).split("\n"), start=1)
    prompts = [_prompt(line, f"{name}, line {number}", family) for number, line in lines if line.strip()]
    if not prompts:
        raise InputError(f"{name} holds no prompts")
    return prompts


def read_object(line: str, where: str) -> dict[str, object]:
    """Parse a line that must be a JSON object. Raises InputError."""
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: invalid JSON, or a number of 5000 digits
        raise InputError(f"{where} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{where} is not a JSON object")
    return value


def read_messages(value: object, where: str) -> list[Message]:
    """Check a line's `messages`: at least one, each with a role and content. Raises InputError."""
    items = value if isinstance(value, list) else []
    if not items or not all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in items):
        raise InputError(f"{where}: messages must be a list of objects with role and content")
    try:
        messages = [Message(item["role"], item.get("content", "")) for item in items]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for message in messages:
        checked_text(message.content, where)
    return messages


def checked_prompt(prompt: Prompt, where: str) -> Prompt:
    """Return the prompt. Raises InputError for text that no tokenizer accepts, and for an empty turn."""
    for text in (prompt.family, *prompt.turns):
        checked_text(text, where)
    if not all(turn.strip() for turn in prompt.turns):
        raise InputError(f"{where} has an empty turn: a user message needs text")
    return prompt


def _prompt(line: str, where: str, default: str | None) -> Prompt:
    value = read_object(line, where)
    family = value.get("family", value.get("category", default))
    if not isinstance(family, str):
        raise InputError(f"{where} has neither a family nor a category")
    if "messages" in value:
        return _from_messages(family, read_messages(value["messages"], where), where)
    turns = value.get("turns", [value["prompt"]] if "prompt" in value else None)
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise InputError(f"{where} has neither messages nor turns (a list of strings) nor a prompt (a string)")
    return checked_prompt(Prompt(family, (), tuple(turns)), where)


def _from_messages(family: str, messages: list[Message], where: str) -> Prompt:
    if messages[-1].role != "user":
        raise InputError(f"{where}: the last message must be the user's, not the {messages[-1].role}'s")
    return checked_prompt(Prompt(family, tuple(messages[:-1]), (messages[-1].content,)), where)
