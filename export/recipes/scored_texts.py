"""Reads texts for calibration or scoring from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedecode.engines.text_scores import ScoredText
from edgedecode.errors import ExportError
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.printable import file_text
from edgedecode.text.prompts import read_object
from edgedecode.text.tokenizer import Tokenizer

from ..frameworks import refused

_WINDOW = 512
"""Tokens of a window of plain text; the first one is not scored."""


def read_texts(
    path: Path, *, tokenizer: Tokenizer, template: ChatTemplate | None, context: int
) -> tuple[ScoredText, ...]:
    """Read a text file, or a .jsonl file of rows with `messages` and optionally `answer`.

    If a row has an answer, only the answer is scored. Plain text is split into windows of 512 tokens, conversations are
    cut to the context. Raises ExportError if the file cannot be read or contains nothing to score.
    """
    try:
        with refused():
            text = file_text(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from None
    if path.suffix == ".jsonl":
        lines = [line for line in text.splitlines() if line.strip()]
        found = [
            _conversation(line, where=f"{path}, line {number}", tokenizer=tokenizer, template=template)
            for number, line in enumerate(lines, start=1)
        ]
        texts = tuple(ScoredText(text.tokens[:context], text.start) for text in found)
    else:
        texts = whole_texts([tokenizer.encode(text)], context=context)
    if not (texts := tuple(text for text in texts if text.scored > 0)):
        raise ExportError(f"{path} contains no text to score: give a file with sentences, or with rows of messages")
    return texts


def whole_texts(texts: Sequence[Sequence[int]], *, context: int) -> tuple[ScoredText, ...]:
    """Split texts into windows in which all tokens but the first are scored."""
    size = min(_WINDOW, context)
    windows = [text[start : start + size] for text in texts for start in range(0, len(text), size)]
    return tuple(ScoredText(tuple(window), 1) for window in windows if len(window) > 1)


def _conversation(line: str, *, where: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> ScoredText:
    """Encode a row as a chat: the prompt through the template, followed by the answer."""
    with refused():
        row = read_object(line, where)
    messages = row.get("messages")
    if not isinstance(messages, list):
        raise ExportError(f"{where} has no list of messages")
    if template is None:
        raise ExportError(f"{where} is a conversation, and the model has no chat template: give a text file")
    answer = row.get("answer")
    with refused(where):
        prompt = template.render(messages, add_generation_prompt=isinstance(answer, str))
    tokens = tokenizer.encode(prompt)
    if not isinstance(answer, str):
        return ScoredText(tuple(tokens), 1)
    return ScoredText((*tokens, *tokenizer.encode(answer)), max(1, len(tokens)))
