"""OpenAI's responses: the body of /v1/responses, its reply, and its events. Nothing is stored between requests."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from time import time
from typing import Annotated, Any

from msgspec import Meta

from edgedecode import FinishReason, InputError, SamplingOptions
from edgedecode.decoding.stats import Stats
from edgedecode.sampling.log_probabilities import MOST_TOP_LOGPROBS
from edgedecode.typed_json import JsonValue

from .logprobs import Entry, response_form
from .replies import Event, calls_of, timings
from .requests.asked import TRUNCATION, Asked, Seed, Stop, read_chat
from .requests.fields import UNSUPPORTED, check_fields, read_object, typed_body
from .requests.tools import Call

__all__ = ["UNSUPPORTED_RESPONSES", "ResponseBody", "ResponsesReply", "read_response"]

_SAME = (
    *("model", "temperature", "top_p", "top_k", "min_p", "stream", "seed", "stop", "tool_choice"),
    *("parallel_tool_calls", "top_logprobs", "truncation"),
)
"""Fields that mean the same for chat completions."""
_FORMATS = ("text", "json_object", "json_schema")
_LOGPROBS = "message.output_text.logprobs"
_MESSAGES = re.compile(r"\bmessages\b(?:\[(\d+)\])?")
UNSUPPORTED_RESPONSES: Mapping[str, tuple[object, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "prompt": ({},),
    "reasoning": ({},),
    "background": (False,),
    "logprobs": (False,),
    "max_tool_calls": (),
    "return_rounds": (False,),
    "n": (1,),
    "max_tokens": (),
    "response_format": (),
    "stream_options": ({}, {"include_obfuscation": False}),
    **{name: UNSUPPORTED[name] for name in ("logit_bias", "frequency_penalty", "presence_penalty")},
    **{name: UNSUPPORTED[name] for name in ("store", "service_tier")},
}
"""Fields that would change the answer, or need a store, with the values that mean nothing."""
_ECHOED = (
    "instructions",
    "metadata",
    "parallel_tool_calls",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
)
_CHAT_NAMES = (
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\bmax_tokens\b"), "max_output_tokens"),
    (re.compile(r"(?<=tools\[\d\])\.function\b|(?<=tools\[\d\d\])\.function\b"), ""),
)
"""Names of the chat's fields in its errors, and what they are in this body."""


@dataclass(frozen=True, slots=True)
class _TextFormat:
    type: Annotated[str, Meta(extra_json_schema={"enum": [*_FORMATS]})] = "text"
    schema: dict[str, Any] | bool | None = None


@dataclass(frozen=True, slots=True)
class _Text:
    format: _TextFormat | None = None
    verbosity: Annotated[None, Meta(description="Not offered.")] = None


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """The body of /v1/responses. input: a text, or messages, calls and their outputs."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: the likeliest token.")] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    seed: Seed | None = None
    stream: bool | None = None
    text: _Text | None = None
    truncation: Annotated[str, TRUNCATION] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[Annotated[str, Meta(extra_json_schema={"enum": [_LOGPROBS]})]] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None


def read_response(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /v1/responses, as the chat that means the same. Raises InputError."""
    value = read_object(data)
    body = typed_body(value, ResponseBody)
    check_fields(value, {each.name for each in fields(body)}, UNSUPPORTED_RESPONSES)
    chat: dict[str, JsonValue] = {name: value[name] for name in _SAME if name in value}
    chat["logprobs"] = _includes_logprobs(value.get("include"))
    if value.get("top_logprobs") and not chat["logprobs"]:
        raise InputError(f"top_logprobs needs include: give [{_LOGPROBS!r}]")
    if isinstance(choice := value.get("tool_choice"), dict) and "name" in choice:
        chat["tool_choice"] = {"type": choice.get("type"), "function": {"name": choice["name"]}}
    chat["messages"], numbers = _messages(value.get("instructions"), value.get("input"))
    chat["max_tokens"] = value.get("max_output_tokens")
    chat["tools"] = [_nested(tool) for tool in _list(value.get("tools"), "tools")]
    chat["response_format"] = _response_format(body.text)
    try:
        asked = read_chat(json.dumps(chat).encode(), defaults)
    except InputError as error:
        message = _MESSAGES.sub(lambda found: _named(found, numbers), str(error))
        for name, other in _CHAT_NAMES:
            message = name.sub(other, message)
        raise InputError(message) from None
    return replace(asked, echoed={name: value[name] for name in _ECHOED if value.get(name) is not None})


def _response_format(text: _Text | None) -> JsonValue:
    """Return the form of an answer as chat completions describe it. Raises InputError."""
    if text is None or text.format is None:
        return None
    kind, schema = text.format.type, text.format.schema
    if kind not in _FORMATS:
        raise InputError(f"text.format.type must be one of {', '.join(_FORMATS)}, not {kind[:40]!r}")
    if kind != "json_schema":
        return {"type": kind}
    if schema is None:
        raise InputError("text.format.schema is missing")
    return {"type": kind, "json_schema": {"schema": schema}}


def _named(found: re.Match[str], numbers: Sequence[int]) -> str:
    """Return the name of the chat's messages in this body. numbers: each message's item of the input."""
    return "input" if found[1] is None else f"input[{numbers[int(found[1])]}]"


def _includes_logprobs(include: JsonValue) -> bool:
    for name in (items := _list(include, "include")):
        if name != _LOGPROBS:
            raise InputError(f"include has {str(name)[:80]!r}: this server includes {_LOGPROBS} only")
    return bool(items)


def _messages(instructions: JsonValue, given: JsonValue) -> tuple[list[JsonValue], list[int]]:
    """Return the messages of a chat, and the first item of the input that each is made of."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given, "input")
    found: list[JsonValue] = [] if instructions is None else [{"role": "system", "content": instructions}]
    numbers, calls = [0] * len(found), list[JsonValue]()
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise InputError(f"input[{number}] is not an object")
        if item.get("type") != "function_call":
            calls = []
        match item.get("type", "message"):
            case "message":
                found.append({"role": item.get("role"), "content": _content(item.get("content"), number)})
            case "function_call":
                call: JsonValue = {"function": {name: item.get(name) for name in ("name", "arguments")}}
                if not calls:  # the calls of one answer are one message, as the model wrote them
                    found.append({"role": "assistant", "tool_calls": calls})
                calls.append(call)
            case "function_call_output":
                found.append({"role": "tool", "content": _content(item.get("output"), number)})
            case other:
                raise InputError(f"input[{number}] is of type {str(other)[:40]!r}: this server reads text and calls")
        numbers += [number] * (len(found) - len(numbers))
    return found, numbers


def _content(content: JsonValue, number: int) -> JsonValue:
    if not isinstance(content, list):
        return content
    parts: list[JsonValue] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text", "text"):
            raise InputError(f"input[{number}] has a part that is not text: this server reads text only")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


def _nested(tool: JsonValue) -> JsonValue:
    """Return a function as chat completions describe it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _list(value: JsonValue, name: str) -> list[JsonValue]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"{name} must be a list")
    return value


@dataclass(slots=True)
class ResponsesReply:
    """The reply of /v1/responses: one answer, which is a message or calls."""

    asked: Asked
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))
    _number: int = 0
    """Events so far."""
    _item: dict[str, Any] = field(default_factory=dict)
    """What identifies the message that is being written; empty: none."""
    _output: list[dict[str, Any]] = field(default_factory=list)
    """The finished items."""
    _entries: list[Entry] = field(default_factory=list)
    """The log probabilities so far, if they are asked for."""
    _ended: FinishReason | None = None
    _failed: str | None = None
    """Why the answer failed, if it did."""

    done = b""

    def whole(
        self,
        texts: Sequence[str],
        reasons: Sequence[FinishReason | None],
        stats: Sequence[Stats],
        logprobs: Sequence[Sequence[Entry]],
    ) -> dict[str, object]:
        text, reason = texts[0], reasons[0]
        self._entries += logprobs[0]
        calls = calls_of(self.asked, text)
        self._output = [_call_item(call, reason) for call in calls] or [self._message(text, reason)]
        return self._response(reason, stats)

    def begins(self, number: int) -> Sequence[Event]:
        empty = self._response(None, ())
        return [self._event("created", response=empty), self._event("in_progress", response=empty)]

    def writes(
        self,
        number: int,
        text: str,
        report: Mapping[str, object] | None = None,
        logprobs: Sequence[Entry] = (),
    ) -> Sequence[Event]:
        found = [] if self._item else self._opened()
        self._entries += logprobs
        delta = self._event("output_text.delta", **self._place, delta=text, logprobs=response_form(logprobs))
        return [*found, delta]

    def ends(
        self,
        number: int,
        text: str,
        reason: FinishReason | None,
        calls: Sequence[Call],
        logprobs: Sequence[Entry] = (),
    ) -> Sequence[Event]:
        self._ended = reason
        if calls:
            return [event for call in calls for event in self._called(call, reason)]
        found = [] if self._item else self._opened()
        if logprobs:  # of tokens that added no text
            found = [*found, *self.writes(number, "", None, logprobs)]
        place, item = self._place, {**self._message(text, reason), "id": self._item["id"]}
        self._output = [item]
        return [
            *found,
            self._event("output_text.done", **place, text=text, logprobs=response_form(self._entries)),
            self._event("content_part.done", **place, part=item["content"][0]),
            self._event("output_item.done", output_index=0, item=item),
        ]

    def fails(self, message: str) -> Sequence[Event]:
        self._failed = message  # the last event says so
        return []

    def closes(self, stats: Sequence[Stats]) -> Sequence[Event]:
        found = self._response(self._ended, stats)
        return [self._event(str(found["status"]), response=found)]

    def encoded(self, event: Event) -> bytes:
        """Return the event as it is sent; an error has the form of these events."""
        if isinstance(error := event.get("error"), Mapping) and "type" not in event:
            event = {**error, "type": "error", "sequence_number": self._number}
            self._number += 1
        return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()

    @property
    def _place(self) -> dict[str, object]:
        return {"item_id": self._item["id"], "output_index": 0, "content_index": 0}

    def _opened(self) -> list[Event]:
        """Return the events that begin a message."""
        self._item = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        item = {**self._item, "status": "in_progress", "content": []}
        added = self._event("output_item.added", output_index=0, item=item)
        return [added, self._event("content_part.added", **self._place, part=_part("", ()))]

    def _called(self, call: Call, reason: FinishReason | None) -> list[Event]:
        """Return the events of a call, the next item of the output."""
        item, index = _call_item(call, reason), len(self._output)
        self._output.append(item)
        place = {"item_id": item["id"], "output_index": index}
        return [
            self._event("output_item.added", output_index=index, item={**item, "arguments": ""}),
            self._event("function_call_arguments.delta", **place, delta=call.arguments),
            self._event("function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
            self._event("output_item.done", output_index=index, item=item),
        ]

    def _message(self, text: str, reason: FinishReason | None) -> dict[str, Any]:
        """Return a text as an item of the output."""
        ids = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        return {**ids, "status": _status(reason), "content": [_part(text, self._entries)]}

    def _response(self, reason: FinishReason | None, stats: Sequence[Stats]) -> dict[str, object]:
        cut = reason is FinishReason.LENGTH
        failed = self._failed is not None
        status = "failed" if failed else _status(reason) if stats else "in_progress"
        found = {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": {"code": "server_error", "message": self._failed} if failed else None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self.model,
            "output": [*self._output],
            "instructions": None,
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "temperature": self.asked.sampling.temperature,
            "top_p": self.asked.sampling.top_p,
            "max_output_tokens": self.asked.max_tokens,
            "previous_response_id": None,
            "store": False,
            "metadata": {},
            "truncation": "disabled",
            "usage": None,
            **self.asked.echoed,
        }
        return found | ({"usage": _usage(stats[0]), "timings": timings(stats)} if stats else {})

    def _event(self, kind: str, /, **fields: object) -> Event:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **fields}


def _status(reason: FinishReason | None) -> str:
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


def _call_item(call: Call, reason: FinishReason | None) -> dict[str, Any]:
    """Return a call as an item of the output."""
    ids = {"id": f"fc_{secrets.token_hex(12)}", "call_id": call.as_dict()["id"], "type": "function_call"}
    return {**ids, "name": call.name, "arguments": call.arguments, "status": _status(reason)}


def _part(text: str, entries: Sequence[Entry]) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": response_form(entries)}


def _usage(stats: Stats) -> dict[str, object]:
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.cached_tokens},
        "output_tokens": stats.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": stats.prompt_tokens + stats.tokens,
    }
