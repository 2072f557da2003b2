"""The slash commands of a chat: a function each, listed in SLASHES."""

from __future__ import annotations

import json
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedecode import EdgeDecodeError, InputError, Message
from edgedecode.adapters.adapter_change import NO_ADAPTER
from edgedecode.cache import aside, open_private
from edgedecode.commands import scaled_name
from edgedecode.memory.process_memory import ProcessMemory, memory_now, peak_nbytes
from edgedecode.text.printable import checked_text

from ..memory_table import memory_table
from .conversation import Conversation

__all__ = ["SLASHES", "Slash", "load_messages", "run_slash", "save_messages"]

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


@dataclass(frozen=True, slots=True)
class Slash:
    """A command: its argument's name, its help, and its function, which returns False to end the chat."""

    argument: str
    help: str
    run: Callable[[Conversation, str], bool]


def run_slash(line: str, conversation: Conversation) -> bool:
    """Run the command in `line`; return False to end the chat. Errors are shown in one line."""
    name, _, rest = line[1:].strip().partition(" ")
    slash = SLASHES.get(name)
    try:
        if slash is None:
            raise InputError(
                f"there is no command /{name}: /help lists the commands (begin a message with // to send a slash)"
            )
        if bool(rest.strip()) != bool(slash.argument):
            raise InputError(f"usage: /{name} {slash.argument}".rstrip())
        return slash.run(conversation, rest.strip())
    except EdgeDecodeError as error:
        conversation.refuse(" ".join(str(error).split()))
    except OSError as error:
        conversation.refuse(f"{error.strerror or error}: {error.filename or rest}")
    return True


def _help(conversation: Conversation, rest: str) -> bool:
    for name, slash in SLASHES.items():
        conversation.say(f"  {f'/{name} {slash.argument}':<14}  {slash.help}")
    conversation.say(f"  {'Ctrl-C':<14}  stop the answer; twice at the prompt: quit")
    conversation.say(f"  {'Ctrl-D':<14}  quit")
    return True


def _reset(conversation: Conversation, rest: str) -> bool:
    conversation.start_over(_system(conversation))
    conversation.say("the conversation was reset")
    return True


def _set_system(conversation: Conversation, rest: str) -> bool:
    conversation.start_over([Message("system", rest)])
    conversation.say("the conversation was reset, with this system message")
    return True


def _stats(conversation: Conversation, rest: str) -> bool:
    if conversation.last_finish is None:
        raise InputError("there is no answer yet")
    conversation.show_stats(conversation.last_finish)
    return True


def _memory(conversation: Conversation, rest: str) -> bool:
    from rich.console import Console

    budget, sampler = conversation.session.budget, conversation.sampler
    peak = None if sampler is None else sampler.peak
    if peak is None and (resident := peak_nbytes()) is not None:
        peak = ProcessMemory(resident)
    conversation.say(f"planned:\n{budget.table()}\nthis process:")
    Console(stderr=True).print(memory_table(budget.used_nbytes, now=memory_now(), peak=peak))
    return True


def _adapter(conversation: Conversation, rest: str) -> bool:
    try:
        name, scale = (None, 1.0) if rest == NO_ADAPTER else scaled_name(rest)
    except ArgumentTypeError as error:
        raise InputError(str(error)) from None
    conversation.session.use_adapter(name, scale=scale)
    conversation.say("the next answer uses no adapter" if name is None else f"the next answer uses the adapter {name}")
    return True


def _color(conversation: Conversation, rest: str) -> bool:
    conversation.paint.on = not conversation.paint.on
    conversation.say(f"accepted draft tokens are {'coloured' if conversation.paint.on else 'not coloured'}")
    return True


def _save(conversation: Conversation, rest: str) -> bool:
    messages = conversation.session.messages
    save_messages(_path(rest), messages)
    conversation.say(f"{len(messages)} messages saved to {rest}")
    return True


def _load(conversation: Conversation, rest: str) -> bool:
    messages = load_messages(_path(rest), context=conversation.session.context)
    conversation.start_over(messages)
    conversation.say(f"{len(messages)} messages loaded from {rest}")
    return True


def _quit(conversation: Conversation, rest: str) -> bool:
    return False


def _path(name: str) -> Path:
    if "\0" in name:
        raise InputError(f"{name!r} is not a file name: it contains a NUL character")
    return Path(name)


def _system(conversation: Conversation) -> list[Message]:
    """Return the conversation's system message, if it has one."""
    return [message for message in conversation.session.messages[:1] if message.role == "system"]


SLASHES = {
    "reset": Slash("", "start over, keep the system message", _reset),
    "system": Slash("TEXT", "start over with this system message", _set_system),
    "stats": Slash("", "show statistics of the last answer", _stats),
    "memory": Slash("", "show planned memory by holder, and measured memory", _memory),
    "adapter": Slash("NAME", f"use an adapter of the pack, NAME or NAME:SCALE; {NO_ADAPTER}: use none", _adapter),
    "color": Slash("", "switch the colours of accepted draft tokens on or off", _color),
    "save": Slash("FILE", "save the conversation to a file", _save),
    "load": Slash("FILE", "load a saved conversation and continue it", _load),
    "help": Slash("", "show this list", _help),
    "quit": Slash("", "quit", _quit),
}
