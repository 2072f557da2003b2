"""Conversations in files: a JSON object with the list of messages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedecode import InputError, Message
from edgedecode.cache import replace_text
from edgedecode.errors import cause
from edgedecode.text.printable import checked_text
from edgedecode.typed_json import typed

LARGEST_NBYTES = 64 * 2**20
FRAME_NBYTES, BYTES_PER_TOKEN = 2**16, 64
"""Size limit of a saved conversation: a fixed part, and a part per token of the context."""


@dataclass(frozen=True, slots=True)
class _Saved:
    role: str
    content: str


def save_messages(path: Path, messages: Sequence[Message]) -> None:
    """Write the messages to `path` as a JSON object, atomically.

    Raises OSError that names `path`, the old file unchanged; InputError if `path` is a folder, device or pipe.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists and is not a regular file: choose another name")
    value = {"messages": [{"role": message.role, "content": message.content} for message in messages]}
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    try:
        replace_text(path, text, private=True)
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
        value = json.loads(data.decode("utf-8"))
        found = typed(value.get("messages") if isinstance(value, dict) else value, list[_Saved], "messages")
        return [Message(each.role, checked_text(each.content, "the content")) for each in found]
    except (ValueError, RecursionError, InputError) as error:  # ValueError: not UTF-8, not JSON, or of other types
        raise InputError(f"{path} holds no conversation ({cause(error)}): nothing was loaded") from None
