"""Reads the messages of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from edgedecode import InputError, Message
from edgedecode.text.messages import ROLES

from .fields import one_of
from .tools import Call, call_text

__all__ = ["MessageBody", "read_message"]


@dataclass(frozen=True, slots=True)
class _Part:
    type: Annotated[str, one_of("text")]
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Called:
    name: str
    arguments: Annotated[str, Meta(description="JSON.")]


@dataclass(frozen=True, slots=True)
class _Call:
    function: _Called


@dataclass(frozen=True, slots=True)
class MessageBody:
    role: Annotated[str, one_of(*ROLES, "developer")]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    function_call: Annotated[None, Meta(description="The older form of tool_calls is not offered.")] = None


def read_message(message: MessageBody, number: int) -> Message:
    content = message.content
    if isinstance(content, list):
        if wrong := [part.type for part in content if part.type != "text"]:
            raise InputError(f"messages[{number}] has a part of type {wrong[0][:40]!r}: this server reads text only")
        content = "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    try:
        calls = [call_text(Call(each.function.name, each.function.arguments)) for each in message.tool_calls or []]
        return Message(role, "\n".join([*([content] if content else []), *calls]))
    except InputError as error:
        raise InputError(f"messages[{number}]: {error}") from None
