"""Conversations in files: a JSON object with the list of messages."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from edgedecode import InputError, Message
from edgedecode.cache import aside, open_private
from edgedecode.text.printable import checked_text

LARGEST_NBYTES = 64 * 2**20
FRAME_NBYTES, BYTES_PER_TOKEN = 2**16, 64
"""Size limit of a saved conversation: a fixed part, and a part per token of the context."""


def save_messages(path: Path, messages: Sequence[Message]) -> None:
    """Write the messages to `path` as a JSON object, atomically.

    Raises OSError that names `path`, the old file unchanged; InputError if `path` is a folder, device or pipe.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists and is not a regular file: choose another name")
    value = {"messages": [{"role": message.role, "content": message.content} for message in messages]}
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    try:
        with aside(path) as fresh, open(fresh, "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def load_messages(path: Path, *, context: int = LARGEST_NBYTES) -> list[Message]:
    """Read messages: a JSON object with `messages`, or the bare list. Raises InputError or OSError.

    A file larger than a conversation of `context` tokens can be is refused.
    """
    most = min(LARGEST_NBYTES, FRAME_NBYTES + BYTES_PER_TOKEN * context)
    with path.open("rb") as file:
        data = file.read(most + 1)  # the reported size of a device is meaningless
    if len(data) > most:
        raise InputError(
            f"{path} has more than {most} bytes, longer than a conversation that fits this context: nothing was loaded"
        )
    try:
        value: object = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, or a number of 5000 digits
        raise InputError(f"{path} is not JSON ({' '.join(str(error).split())}): nothing was loaded") from None
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list):
        raise InputError(f"{path} does not contain a list of messages: nothing was loaded")
    return [_message(item, f"{path}, message {number}") for number, item in enumerate(value, start=1)]


def _message(value: object, where: str) -> Message:
    role, content = (value.get("role"), value.get("content")) if isinstance(value, dict) else (None, None)
    if not isinstance(role, str) or not isinstance(content, str):
        raise InputError(f"{where} does not have a role and a content that are strings: nothing was loaded")
    try:
        return Message(role, checked_text(content, "the content"))
    except InputError as error:
        raise InputError(f"{where}: {error}; nothing was loaded") from None
