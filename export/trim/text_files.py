"""Texts that are given instead of answered: a plain text, or conversations as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgedecode.errors import InputError
from edgedecode.text.messages import Message
from edgedecode.text.printable import checked_text, decoded_text
from edgedecode.text.prompts import read_messages, read_object
from edgedecode.text.tokenizer import Tokenizer

from .scored_text import ScoredText

__all__ = ["answered", "check_text_file", "read_text_file", "text_of"]

_WINDOW = 256
"""Tokens of a piece that a plain text is cut into: the pieces are what can be held out."""
_LARGEST = 64 << 20


def read_text_file(path: Path, *, tokenizer: Tokenizer, context: int) -> list[ScoredText]:
    """Read a text file, or a .jsonl file with `messages`, of which what the assistant said counts, or with `text`.

    Raises InputError for a file that is no text, is empty, or has a line with neither; OSError as `open` does.
    """
    content = text_of(path)
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
    content = text_of(path)
    if path.suffix == ".jsonl":
        _rows(path, content)


def answered(messages: Sequence[Message], answer: str, tokenizer: Tokenizer) -> ScoredText:
    """Encode an answer behind the prompt that it answers."""
    prompt = tokenizer.encode(tokenizer.chat_template.render(messages, add_generation_prompt=True))
    return ScoredText((*prompt, *tokenizer.encode(answer)), max(1, len(prompt)))


def text_of(path: Path) -> str:
    """Read a file that must be text. Raises InputError, OSError."""
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise InputError(f"{path} is larger than {_LARGEST >> 20} MiB: give a part of it")
    content = decoded_text(path.read_bytes(), str(path))
    if "\0" in content:
        raise InputError(f"{path} is not text: it has a zero byte at character {content.index(chr(0))}")
    return content


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
