"""Reads the messages of a chat."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from edgedecode import InputError, Message
from edgedecode.text.messages import ROLES
from edgedecode.typed_json import JsonValue

from .fields import enum, typed_part
from .tools import Call, call_text


class _Part(Struct, frozen=True):
    type: Annotated[str, enum("text", "refusal")]
    text: str = ""
    refusal: str = ""


class _Called(Struct, frozen=True):
    name: str
    arguments: Annotated[str | dict[str, Any] | None, Meta(description="JSON; empty: no arguments.")] = None


class CallBody(Struct, frozen=True):
    function: _Called
    id: str | None = None


class MessageBody(Struct, frozen=True):
    """A message. tool_call_id, name: of a tool's result, the call that it answers and the function's name.

    reasoning_content: of an earlier answer, what the model thought before it, for templates that read it.
    """

    role: Annotated[str, enum(*ROLES, "developer")]
    content: str | list[_Part] | None = None
    refusal: Annotated[str, Meta(description="Of an earlier answer, in place of its content.")] | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallBody] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    function_call: Annotated[None, Meta(description="The older form of tool_calls is not offered.")] = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a body. For errors: where each is in the body, and what `tool_call_id` is called there."""

    bodies: Sequence[MessageBody]
    places: Sequence[str]
    id_field: str = "tool_call_id"

    @classmethod
    def of(cls, messages: Sequence[JsonValue], places: Sequence[str], id_field: str) -> "Conversation":
        """Return the conversation of messages that were made of another API's. Raises InputError."""
        bodies = [typed_part(each, MessageBody, place) for each, place in zip(messages, places, strict=True)]
        return cls(bodies, places, id_field)

    def read(self) -> list[Message]:
        """Return the messages, with the results of calls in the order of the calls. Raises InputError."""
        bodies, caller = self.bodies, 0
        messages = [_message(body, place) for body, place in zip(bodies, self.places, strict=True)]
        while caller < len(bodies):
            end = next((each for each in range(caller + 1, len(bodies)) if bodies[each].role != "tool"), len(bodies))
            first = caller if bodies[caller].role == "tool" else caller + 1  # a conversation may begin with a result
            messages[first:end] = [messages[place] for place in self._in_order(caller, range(first, end))]
            caller = end
        return messages

    def _in_order(self, caller: int, results: Sequence[int]) -> list[int]:
        """Return the numbers of results in the order of the calls that they answer. Raises InputError."""
        calls, place = self.bodies[caller].tool_calls or [], self.places[caller]
        ids = [call.id for call in calls if call.id]
        if len({*ids}) < len(ids):
            raise InputError(f"{place}.tool_calls has two calls of one id")
        answers: dict[int, int] = {}
        for number in results:
            answered = self._answered(number, caller, calls)
            if answered in answers:
                other = self.places[answers[answered]]
                raise InputError(f"{self.places[number]}.{self.id_field}: {other} is the result of that call")
            answers[answered] = number
        missing = [each for each in range(len(calls)) if each not in answers]
        if answers and missing:
            raise InputError(f"{place}.tool_calls[{missing[0]}] has no result, and others have")
        return [answers[each] for each in sorted(answers)]

    def _answered(self, number: int, caller: int, calls: Sequence[CallBody]) -> int:
        """Return which of the calls a result answers; where there are none, its own number. Raises InputError."""
        result, place, answered = self.bodies[number], self.places[number], number
        if id := result.tool_call_id:
            known = {call.id: each for each, call in enumerate(calls)}
            if id not in known:
                why = f"{self.places[caller]} has no" if caller < number else "nothing before it has a"
                raise InputError(f"{place}.{self.id_field}: {why} call {id[:80]!r}")
            answered = known[id]
        elif len(calls) > 1:
            raise InputError(f"{place}.{self.id_field} is missing: {self.places[caller]} makes {len(calls)} calls")
        elif calls:
            answered = 0
        if calls and result.name and result.name != (name := calls[answered].function.name):
            raise InputError(f"{place}.name: that call is one of {name[:64]!r}")
        return answered


def _message(message: MessageBody, place: str) -> Message:
    content = message.content
    if isinstance(content, list):
        if wrong := [part.type for part in content if part.type not in ("text", "refusal")]:
            raise InputError(f"{place} has a part of type {wrong[0][:40]!r}: this server reads text only")
        content = "".join(part.text or part.refusal for part in content)
    content = content or message.refusal
    role = "system" if message.role == "developer" else message.role
    try:
        given = [(each.function.name, each.function.arguments or "") for each in message.tool_calls or []]
        calls = [call_text(Call(name, each if isinstance(each, str) else json.dumps(each))) for name, each in given]
        thought = (message.reasoning_content or "") if role == "assistant" else ""
        return Message(role, "\n".join([*([content] if content else []), *calls]), thought)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
