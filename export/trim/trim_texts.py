"""The texts of a trim: which tokens of each are scored, the files they are read from, and the categories."""

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

_HELD_OUT = 4
"""One group in this many is held out."""
_WINDOW = 256
"""Tokens per piece of a plain text; held out piece by piece."""

CALIBRATION = "calibration"
"""The category name of the calibration's held-out part."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text of which the tokens from `start` on are scored; at least 1, because a proposal needs a context."""

    tokens: tuple[int, ...]
    start: int
    ended: bool = False
    """Whether the text ended by itself; if it was cut, its last token would not have been drafted."""
    greedy: bool = True
    """Whether the text was given or decoded greedily; sampled texts do not measure a greedy draft's acceptance."""
    group: int = 0
    """Texts of a group, such as answers to one prompt, are held out together."""

    def cut(self, length: int) -> ScoredText:
        """Return the text cut to at most `length` tokens."""
        if len(self.tokens) <= length:
            return self
        return replace(self, tokens=self.tokens[:length], start=min(self.start, length), ended=False)

    @property
    def scored(self) -> tuple[int, ...]:
        return self.tokens[self.start :]


@dataclass(frozen=True, slots=True)
class Split:
    """Texts whose tokens are counted, and held-out texts to measure on."""

    counted: tuple[ScoredText, ...]
    held_out: tuple[ScoredText, ...]

    def halves(self) -> tuple[tuple[ScoredText, ...], tuple[ScoredText, ...]]:
        """Split the held-out texts by alternating groups, into texts to choose a size on and texts to report on.

        A size covers the text it was chosen on by construction. If only one group is held out, it serves as both.
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
    """Hold out a quarter of the groups, depending on the seed. Raises InputError if there are fewer than two groups."""
    groups = sorted({text.group for text in texts if text.scored})
    if len(groups) < 2:
        raise InputError("calibration needs at least two texts, since a part is held out: give more prompts or text")
    count = max(1, len(groups) // _HELD_OUT)
    held = set(np.random.default_rng(seed).permutation(groups)[:count].tolist())
    return Split(
        counted=tuple(text for text in texts if text.group not in held),
        held_out=tuple(text for text in texts if text.group in held and text.scored),
    )


def read_text_file(path: Path, *, tokenizer: Tokenizer, context: int) -> list[ScoredText]:
    """Read a text file, or a .jsonl file whose lines have `text`, or `messages` of which the assistant's are scored.

    Raises InputError if the file is binary or empty, or if a line has neither key; OSError as `open` does.
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
        raise InputError(f"{path} has no text to count: give sentences, or lines with messages of an assistant")
    return [text for text in texts if text.scored]


def check_text_file(path: Path) -> None:
    """Check a text file for `read_text_file`, as far as possible without a tokenizer. Raises InputError, OSError."""
    content = file_text(path)
    if path.suffix == ".jsonl":
        _rows(path, content)


def answered(messages: Sequence[Message], answer: str, tokenizer: Tokenizer) -> ScoredText:
    """Encode a prompt followed by its answer, which is scored."""
    prompt = tokenizer.encode(tokenizer.chat_template.render(messages, add_generation_prompt=True))
    return ScoredText((*prompt, *tokenizer.encode(answer)), max(1, len(prompt)))


def _rows(path: Path, content: str) -> list[str | list[Message]]:
    lines = enumerate(content.split("\n"), start=1)
    return [_row(line, f"{path}, line {number}") for number, line in lines if line.strip()]


def _row(line: str, where: str) -> str | list[Message]:
    """Return a line's text or messages, at least one of which is the assistant's."""
    value = read_object(line, where)
    if isinstance(value.get("text"), str):
        return checked_text(str(value["text"]), where)
    if "messages" not in value:
        raise InputError(f"{where} has neither messages nor a text; prompts belong to --calibrate")
    messages = read_messages(value["messages"], where)
    if isinstance(value.get("answer"), str):
        messages.append(Message("assistant", checked_text(str(value["answer"]), where)))
    if not any(map(_counts, messages)):
        raise InputError(f"{where} has neither an assistant's message nor an answer; prompts belong to --calibrate")
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
    """One text of a category: a prompt and, if given, its answer."""

    category: str
    messages: tuple[Message, ...]
    answer: str | None

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.category, self.messages[:-1], (self.messages[-1].content,))


def bundled_categories() -> list[CategoryRow]:
    """Return the bundled rows: code, math, prose, structured, multilingual."""
    return _parse(decoded_text(_bundled("categories.jsonl"), "the bundled categories"), "the bundled categories")


def read_categories(path: Path) -> list[CategoryRow]:
    """Read a user's file, where `family` is an alias of `category`. Raises InputError naming the line, OSError."""
    return _parse(file_text(path), str(path))


def bundled_prompts() -> list[Prompt]:
    """Return the bundled prompts to calibrate on."""
    return parse_prompts(_bundled("prompts.jsonl"), "the bundled prompts")


def _bundled(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


def _parse(content: str, name: str) -> list[CategoryRow]:
    lines = enumerate(content.split("\n"), start=1)
    rows = [_category_row(line, f"{name}, line {number}") for number, line in lines if line.strip()]
    if not rows:
        raise InputError(f"{name} has no rows")
    return rows


def _category_row(line: str, where: str) -> CategoryRow:
    value = read_object(line, where)
    category = value.get("category", value.get("family"))
    if not isinstance(category, str) or not category.strip():
        raise InputError(f"{where} has no category")
    if category == CALIBRATION:
        raise InputError(f"{where}: the category name {CALIBRATION!r} is reserved, use another one")
    messages = read_messages(value.get("messages"), where)
    if messages[-1].role != "user":
        raise InputError(f'{where}: the last message must be the user\'s; put the reply into "answer"')
    answer = value.get("answer")
    if answer is not None and not (isinstance(answer, str) and answer):
        raise InputError(f"{where}: the answer must be a string")
    row = CategoryRow(category, tuple(messages), None if answer is None else checked_text(answer, where))
    checked_prompt(row.prompt, where)
    return row
