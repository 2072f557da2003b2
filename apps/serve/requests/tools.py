"""Functions that a request offers to the model, and the calls that an answer makes.

A call is a JSON object, `{"name": …, "arguments": …}`, which a grammar holds to the function's schema, so it works with
any pack. The functions are described in the system message.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from edgedecode import InputError, Message
from edgedecode.structured.grammar import Grammar, is_text
from edgedecode.structured.schema_check import DRAFTS
from edgedecode.typed_json import JsonValue, typed

__all__ = ["Call", "ChoiceBody", "Function", "ToolBody", "Tools", "call_text", "read_tools"]

_MOST_FUNCTIONS, _MOST_CALLS = 128, 8
"""Of a request, and of an answer: a small model may not stop by itself."""
_FUNCTION = Meta(extra_json_schema={"enum": ["function"]})
_DECODER = json.JSONDecoder()
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Function:
    """parameters: the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that an answer makes. arguments: JSON, as the model wrote it."""

    name: str
    arguments: str

    def as_dict(self) -> dict[str, object]:
        """Return it as OpenAI's replies have it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Tools:
    """What an answer may call. required: it has to be a call; else the model decides, by its first character.

    several: it may be up to 8 calls.
    """

    functions: tuple[Function, ...]
    required: bool = False
    several: bool = False

    @property
    def grammar(self) -> Grammar:
        """The grammar of an answer: calls, or if none is required also any text that does not begin with a brace."""
        calls: list[JsonValue] = [
            {
                "type": "object",
                "properties": {"name": {"const": each.name}, "arguments": _moved(each.parameters, number)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, each in enumerate(self.functions)
        ]
        lines = _MOST_CALLS if self.several else 1
        return Grammar.of_schema({"anyOf": calls}, or_text=not self.required, lines=lines)

    def introduced(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages with a description of the functions in the system message."""
        may = "Call" if self.required else "If it helps, call"
        lines = [
            json.dumps({"name": each.name, "description": each.description, "parameters": each.parameters})
            for each in self.functions
        ]
        call = 'A call is one line, {"name": ..., "arguments": ...}'
        if self.several:
            rule = f"{may} some of these functions. {call}; write the calls one below the other, and nothing else."
        else:
            rule = f"{may} one of these functions. {call}, and nothing else."
        text = "\n".join([rule, *lines])
        if messages and messages[0].role == "system":
            return (Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:])
        return (Message("system", text), *messages)

    def calls(self, answer: str) -> tuple[Call, ...]:
        """Return the calls that a complete answer makes; none if it is text, or was cut off."""
        found: list[Call] = []
        rest = answer
        while rest.startswith("{") and (self.several or not found):
            try:
                value, end = _DECODER.raw_decode(rest)
                found.append(_call(value, rest[:end]))
            except (ValueError, KeyError, TypeError, RecursionError):
                return ()
            rest = rest[end + 1 :] if rest.startswith("\n{", end) else rest[end:]
        return () if rest else tuple(found)


def _call(value: dict[str, JsonValue], text: str) -> Call:
    """Return the call that a value is, which the model wrote as `text`. Raises KeyError."""
    name, arguments = str(value["name"]), value["arguments"]
    start = f'{{"name": {json.dumps(name)}, "arguments": '
    return Call(name, text[len(start) : -1] if text.startswith(start) else _spelled(arguments))


def call_text(call: Call) -> str:
    """Return the text of a call in an earlier message, as models spell it. Raises InputError."""
    try:
        return _spelled({"name": call.name, "arguments": json.loads(call.arguments)})
    except (ValueError, RecursionError):
        raise InputError(f"the arguments of the call of {call.name[:64]!r} are not JSON") from None


def _spelled(value: JsonValue) -> str:
    """Return JSON as models spell it: on one line, with a space after each colon and comma, and letters as they are."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_text(text) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolBody:
    """An item of the field `tools`."""

    type: Annotated[str, _FUNCTION]
    function: _Function | None = None


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


@dataclass(frozen=True, slots=True)
class ChoiceBody:
    """The field `tool_choice`, where it names a function."""

    type: Annotated[str, _FUNCTION]
    function: _Named | None = None


def read_tools(given: JsonValue, choice: JsonValue, *, several: bool = False) -> Tools | None:
    """Read the fields `tools` and `tool_choice`; None: nothing may be called. Raises InputError.

    several: an answer may make several calls.
    """
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        raise InputError("tool_choice of the type allowed_tools is not supported: send only these functions as tools")
    if isinstance(choice, dict) and "name" in choice and "function" not in choice:
        raise InputError('tool_choice names a function as {"type": "function", "function": {"name": ...}}')
    try:
        tools = typed(given, list[ToolBody], "tools") if given is not None else []
        asked = choice if choice is None or isinstance(choice, str) else typed(choice, ChoiceBody, "tool_choice")
    except ValueError as error:
        raise InputError(str(error)[:300]) from None
    if len(tools) > _MOST_FUNCTIONS:
        raise InputError(f"tools has {len(tools)} functions, the most is {_MOST_FUNCTIONS}")
    functions = tuple(_function(tool, number) for number, tool in enumerate(tools))
    names = [each.name for each in functions]
    if len({*names}) < len(names):
        raise InputError("tools has two functions of one name")
    if isinstance(asked, ChoiceBody):
        if asked.type != "function" or asked.function is None or asked.function.name not in names:
            raise InputError("tool_choice names no function of tools")
        return Tools((functions[names.index(asked.function.name)],), required=True, several=several)
    if asked not in (None, "none", "auto", "required"):
        raise InputError("tool_choice must be none, auto, required, or name a function")
    if asked == "required" and not functions:
        raise InputError("tool_choice is required and there are no tools")
    if not functions or asked == "none":
        return None
    return Tools(functions, required=asked == "required", several=several)


def _function(tool: ToolBody, number: int) -> Function:
    found = tool.function
    if tool.type != "function" or found is None:
        raise InputError(f"tools[{number}] is no function: this server offers functions only")
    if not _NAME.fullmatch(found.name):
        raise InputError(f"tools[{number}] has the name {found.name[:80]!r}: use up to 64 letters, digits, _ and -")
    parameters = dict(found.parameters or {"type": "object", "properties": {}})
    if isinstance(draft := parameters.get("$schema"), str) and DRAFTS.fullmatch(draft):
        del parameters["$schema"]  # the schema becomes a part of another, where this and $id are not allowed
    parameters.pop("$id", None)
    return Function(found.name, found.description or "", parameters)


def _moved(schema: JsonValue, number: int) -> JsonValue:
    """Return a function's schema with its references to its own root, which is now inside another schema."""
    if isinstance(schema, dict):
        moved = {name: _moved(value, number) for name, value in schema.items()}
        target = schema.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            moved["$ref"] = f"#/anyOf/{number}/properties/arguments{target[1:]}"
        return moved
    return [_moved(value, number) for value in schema] if isinstance(schema, list) else schema
