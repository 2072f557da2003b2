"""Texts by category that a trim is held to, whatever it was calibrated on.

A row of such a file: `category`, `messages`, and perhaps an `answer`, which is then taken as it is; else the target
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from edgedecode.errors import InputError
from edgedecode.text.messages import Message
from edgedecode.text.printable import checked_text, decoded_text
from edgedecode.text.prompts import Prompt, checked_prompt, parse_prompts, read_messages, read_object

from .text_files import text_of

__all__ = ["CALIBRATION", "CategoryRow", "bundled_categories", "bundled_prompts", "in_turn", "read_categories"]

_Row = TypeVar("_Row")

CALIBRATION = "calibration"
"""The name of the calibration's own held-out part."""


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One text of a category: a prompt, and what is said to it where that is given."""

    category: str
    messages: tuple[Message, ...]
    answer: str | None

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.category, self.messages[:-1], (self.messages[-1].content,))


def bundled_categories() -> list[CategoryRow]:
    """Return the rows that come with the package: code, math, prose, structured, multilingual."""
    return _parse(decoded_text(_bundled("categories.jsonl"), "the bundled categories"), "the bundled categories")


def read_categories(path: Path) -> list[CategoryRow]:
    """Read a user's file; `family` serves as `category`. Raises InputError naming the line, OSError."""
    return _parse(text_of(path), str(path))


def bundled_prompts() -> list[Prompt]:
    """Return the prompts that come with the package to calibrate on."""
    return parse_prompts(_bundled("prompts.jsonl"), "the bundled prompts")


def in_turn(rows: Sequence[_Row], *, name: Callable[[_Row], str], most: int | None = None) -> list[_Row]:
    """Return at most `most` rows of each name, the names in turn: then the first few hold some of each."""
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return [
        row for some in zip_longest(*(group[:most] for group in groups.values())) for row in some if row is not None
    ]


def _bundled(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


def _parse(content: str, name: str) -> list[CategoryRow]:
    lines = enumerate(content.split("\n"), start=1)
    rows = [_row(line, f"{name}, line {number}") for number, line in lines if line.strip()]
    if not rows:
        raise InputError(f"{name} holds no rows")
    return rows


def _row(line: str, where: str) -> CategoryRow:
    value = read_object(line, where)
    category = value.get("category", value.get("family"))
    if not isinstance(category, str) or not category.strip():
        raise InputError(f"{where} has no category")
    if category == CALIBRATION:
        raise InputError(f"{where}: {CALIBRATION!r} is the calibration's own part, name the category otherwise")
    messages = read_messages(value.get("messages"), where)
    if messages[-1].role != "user":
        raise InputError(f"{where}: the last message must be the user's, and what is said to it an answer")
    answer = value.get("answer")
    if answer is not None and not (isinstance(answer, str) and answer):
        raise InputError(f"{where}: an answer must be a text")
    row = CategoryRow(category, tuple(messages), None if answer is None else checked_text(answer, where))
    checked_prompt(row.prompt, where)
    return row
