"""The texts of a trim: what counts in each, the files they are read from, and the categories a trim is held to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from edgedecode.errors import InputError
from edgedecode.text.messages import Message
from edgedecode.text.printable import checked_text, decoded_text, file_text
from edgedecode.text.prompts import Prompt, checked_prompt, parse_prompts, read_messages, read_object
from edgedecode.text.tokenizer import Tokenizer

__all__ = [
    "CALIBRATION",
    "CategoryRow",
    "ScoredText",
    "answered",
    "bundled_categories",
    "bundled_prompts",
    "check_text_file",
    "read_categories",
    "read_text_file",
    "split_texts",
]

_HELD_OUT = 4
"""One group in N is held out."""
_WINDOW = 256
"""Tokens of a piece that a plain text is cut into: the pieces are what can be held out."""

CALIBRATION = "calibration"
"""The name of the calibration's own held-out part."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """What counts are the tokens from `start` on, at least 1: a draft comes after something."""

    tokens: tuple[int, ...]
    start: int
    ended: bool = False
    """Whether its last token ended it by itself; otherwise it was cut, and that one would not have been drafted."""
    greedy: bool = True
    """Whether these are the target's likeliest tokens, or a text as it was given: what a greedy draft is held to."""
    group: int = 0
    """Texts of one group, answers to one prompt say, are held out together or not at all."""

    def cut(self, length: int) -> ScoredText:
        """Return its first `length` tokens; of one that is longer, nothing counts beyond."""
        if len(self.tokens) <= length:
            return self
        return replace(self, tokens=self.tokens[:length], start=min(self.start, length), ended=False)

    @property
    def scored(self) -> tuple[int, ...]:
        return self.tokens[self.start :]


@dataclass(frozen=True, slots=True)
class Split:
    """Texts that are counted, and texts that tell what the counting is worth."""

    counted: tuple[ScoredText, ...]
    held_out: tuple[ScoredText, ...]

    def halves(self) -> tuple[tuple[ScoredText, ...], tuple[ScoredText, ...]]:
        """Split the held-out texts by alternating groups: some to choose a size on, some to measure its coverage.

        A size that was chosen on a text covers it by construction. Where one group is held out both are that one.
        """
        groups = sorted({text.group for text in self.held_out})
        if len(groups) < 2:
            return self.held_out, self.held_out
        chosen = set(groups[::2])
        return (
            tuple(text for text in self.held_out if text.group in chosen),
            tuple(text for text in self.held_out if text.group not in chosen),
        )


def split_texts(texts: Sequence[ScoredText], *, seed: int) -> Split:
    """Hold a quarter of the groups out, the same ones for the same seed. Raises InputError for fewer than two."""
    groups = sorted({text.group for text in texts if text.scored})
    if len(groups) < 2:
        raise InputError("calibrating needs two texts at least, since a part is held out: give more prompts or text")
    count = max(1, len(groups) // _HELD_OUT)
    held = set(np.random.default_rng(seed).permutation(groups)[:count].tolist())
    return Split(
        counted=tuple(text for text in texts if text.group not in held),
        held_out=tuple(text for text in texts if text.group in held and text.scored),
    )


def read_text_file(path: Path, *, tokenizer: Tokenizer, context: int) -> list[ScoredText]:
    """Read a text file, or a .jsonl file with `messages`, of which what the assistant said counts, or with `text`.

    Raises InputError for a file that is no text, is empty, or has a line with neither; OSError as `open` does.
    """
    content = file_text(path)
    if path.suffix == ".jsonl":
        rows = _rows(path, content)
        found = [(group, text) for group, row in enumerate(rows) for text in _scored(row, tokenizer)]
    else:
        tokens = tokenizer.encode(content)
        starts = range(0, len(tokens), _WINDOW)
        found = [(start, ScoredText(tuple(tokens[start : start + _WINDOW]), 1)) for start in starts]
    texts = [replace(text.cut(context), group=group) for group, text in found]
    if not any(text.scored for text in texts):
        raise InputError(f"{path} holds no text to count: give sentences, or lines with messages of an assistant")
    return [text for text in texts if text.scored]


def check_text_file(path: Path) -> None:
    """Refuse such a file for what can be seen without a tokenizer. Raises InputError, OSError."""
    content = file_text(path)
    if path.suffix == ".jsonl":
        _rows(path, content)


def answered(messages: Sequence[Message], answer: str, tokenizer: Tokenizer) -> ScoredText:
    """Encode an answer behind the prompt that it answers."""
    prompt = tokenizer.encode(tokenizer.chat_template.render(messages, add_generation_prompt=True))
    return ScoredText((*prompt, *tokenizer.encode(answer)), max(1, len(prompt)))


def _rows(path: Path, content: str) -> list[str | list[Message]]:
    lines = enumerate(content.split("\n"), start=1)
    return [_row(line, f"{path}, line {number}") for number, line in lines if line.strip()]


def _row(line: str, where: str) -> str | list[Message]:
    """Return a line's text, or its messages, of which one at least is an assistant's."""
    value = read_object(line, where)
    if isinstance(value.get("text"), str):
        return checked_text(str(value["text"]), where)
    if "messages" not in value:
        raise InputError(f"{where} has neither messages nor a text: --calibrate takes prompts")
    messages = read_messages(value["messages"], where)
    if isinstance(value.get("answer"), str):
        messages.append(Message("assistant", checked_text(str(value["answer"]), where)))
    if not any(map(_counts, messages)):
        raise InputError(f"{where} has no message of an assistant, and no answer: --calibrate takes prompts")
    return messages


def _scored(row: str | list[Message], tokenizer: Tokenizer) -> Iterator[ScoredText]:
    if isinstance(row, str):
        yield ScoredText(tuple(tokenizer.encode(row)), 1)
        return
    for index, message in enumerate(row):
        if _counts(message):
            yield answered(row[:index], message.content, tokenizer)


def _counts(message: Message) -> bool:
    return message.role == "assistant" and bool(message.content)


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
    return _parse(file_text(path), str(path))


def bundled_prompts() -> list[Prompt]:
    """Return the prompts that come with the package to calibrate on."""
    return parse_prompts(_bundled("prompts.jsonl"), "the bundled prompts")


def _bundled(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


def _parse(content: str, name: str) -> list[CategoryRow]:
    lines = enumerate(content.split("\n"), start=1)
    rows = [_category_row(line, f"{name}, line {number}") for number, line in lines if line.strip()]
    if not rows:
        raise InputError(f"{name} holds no rows")
    return rows


def _category_row(line: str, where: str) -> CategoryRow:
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
