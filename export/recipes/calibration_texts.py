"""Reads texts for calibration from a file."""

from pathlib import Path

from edgedecode.errors import ExportError
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.printable import file_text
from edgedecode.text.prompts import read_object
from edgedecode.text.tokenizer import Tokenizer

from ..frameworks import refused

_WINDOW = 512
"""Tokens of a piece of plain text."""


def read_texts(
    path: Path, *, tokenizer: Tokenizer, template: ChatTemplate | None, context: int
) -> tuple[tuple[int, ...], ...]:
    """Read a text file, or a .jsonl file of rows with `messages` and optionally `answer`, as token ids.

    Plain text is split into pieces of 512 tokens, conversations are cut to the context. Raises ExportError if the file
    cannot be read or contains no text.
    """
    try:
        with refused():
            text = file_text(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from None
    if path.suffix == ".jsonl":
        lines = [line for line in text.splitlines() if line.strip()]
        found = [
            _conversation(line, where=f"{path}, line {number}", tokenizer=tokenizer, template=template)[:context]
            for number, line in enumerate(lines, start=1)
        ]
    else:
        tokens, size = tokenizer.encode(text), min(_WINDOW, context)
        found = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    if not (texts := tuple(tuple(each) for each in found if len(each) > 1)):
        raise ExportError(f"{path} contains no text: give a file with sentences, or with rows of messages")
    return texts


def _conversation(line: str, *, where: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """Encode a row as a chat: the prompt through the template, followed by the answer."""
    with refused():
        row = read_object(line, where)
    messages, answer = row.get("messages"), row.get("answer")
    if not isinstance(messages, list):
        raise ExportError(f"{where} has no list of messages")
    if template is None:
        raise ExportError(f"{where} is a conversation, and the model has no chat template: give a text file")
    with refused(where):
        tokens = tokenizer.encode(template.render(messages, add_generation_prompt=isinstance(answer, str)))
    return tokens + tokenizer.encode(answer) if isinstance(answer, str) else tokens
