"""Reads the body of /v1/responses, as the chat that means the same."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from edgedecode import InputError, SamplingOptions
from edgedecode.sampling.log_probabilities import MOST_TOP_LOGPROBS
from edgedecode.typed_json import JsonValue

from ..requests.answer_form import FormatBody, read_format
from ..requests.asked import Asked, PastTurn
from ..requests.chat_messages import Conversation
from ..requests.fields import check_fields, enum, made_of, read_body
from ..requests.openai import (
    ChatBody,
    Choice,
    Most,
    Seed,
    Stops,
    Truncation,
    Verbosity,
    asked_chat,
    most_tokens,
)
from ..requests.sampling import SamplingBody
from ..requests.thinking import ReasoningField
from ..requests.tool_fields import CHOICES, ToolBody

_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (
    _LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    *("web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"),
    "computer_call_output.output.image_url",
)
"""All but the first are parts of items that no answer of this server has."""
_LEFT_OUT = (
    *("reasoning", "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output"),
    "ghost_snapshot",
)
"""Items of the input that other servers and clients made for themselves: no chat template has a place for them."""
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_Items: TypeAlias = list[dict[str, Any]]
_Find: TypeAlias = Callable[[str], dict[str, Any] | None]
_Before: TypeAlias = Callable[[str], _Items | None]
UNSUPPORTED_RESPONSES: Mapping[str, tuple[object, ...]] = {
    "conversation": (),
    "prompt": ({},),
    "background": (False,),
    "logprobs": (False,),
    "return_rounds": (False,),
    "n": (1,),
    "max_tokens": (),
    "response_format": (),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),  # it is padding
}
"""Fields that would change the answer, or need a store, with their neutral values, which are accepted."""
_ECHOED = (
    *("instructions", "metadata", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools"),
    *("top_logprobs", "truncation", "previous_response_id"),
)


class _Text(Struct, frozen=True):
    format: FormatBody | None = None
    verbosity: Verbosity | None = None


class ResponseBody(SamplingBody, frozen=True, kw_only=True):
    """The body of /v1/responses. input: a text, or messages, calls and their outputs.

    previous_response_id: of the response that it continues, without its instructions.
    """

    input: str | Annotated[list[dict[str, Any]], Meta(max_length=10_000)]
    model: str | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    max_output_tokens: Most | None = None
    stop: Stops | None = None
    seed: Seed | None = None
    ignore_eos: bool | None = None
    store: Annotated[bool, Meta(description="false: no later request refers to the answer.")] | None = None
    stream: bool | None = None
    text: _Text | None = None
    reasoning: ReasoningField | None = None
    truncation: Truncation | None = None
    tools: list[ToolBody] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    include: list[Annotated[str, enum(*_INCLUDED)]] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None


def read_response(
    data: bytes, defaults: SamplingOptions, *, find: _Find = lambda _: None, before: _Before = lambda _: None
) -> Asked:
    """Read a body of /v1/responses, as the chat that means the same. Raises InputError.

    find: returns a past answer's item by its id. before: returns the items up to a past response by its id.
    """
    value, body = read_body(data, ResponseBody)
    previous = body.previous_response_id or ""
    earlier = before(previous) if previous else []
    if earlier is None:
        raise InputError(
            f"previous_response_id: this server does not have {previous[:80]!r}, or no longer: send the earlier items "
            "again"
        )
    message: dict[str, Any] = {"role": "user", "content": body.input}
    given = [message] if isinstance(body.input, str) else _resolved(body.input, find)
    check_fields(value, body, UNSUPPORTED_RESPONSES)
    logprobs = _includes_logprobs(body.include or [])
    if body.top_logprobs and not logprobs:
        raise InputError(f"top_logprobs needs include: give [{_LOGPROBS!r}]")
    text = body.text or _Text()
    conversation = _conversation(body.instructions, [*earlier, *given], first=-len(earlier))
    others = {"messages": conversation.bodies, "logprobs": logprobs, "store": None}
    chat = made_of(body, ChatBody, verbosity=text.verbosity, **others)
    form = None if text.format is None else read_format(text.format, "text.format")
    asked = asked_chat(chat, defaults, messages=conversation.read(), form=form)
    if body.max_output_tokens is not None:
        asked = replace(asked, max_tokens=most_tokens("max_output_tokens", body.max_output_tokens, least=1))
    echoed = {name: value[name] for name in _ECHOED if value.get(name) is not None}
    echoed |= {name: _own_form(echoed[name]) for name in ("tools", "tool_choice") if name in echoed}
    turn = (
        None
        if body.store is False
        else PastTurn(previous, [item for item in given if item.get("type") not in _LEFT_OUT])
    )
    return replace(asked, echoed=echoed, turn=turn, notes=(*asked.notes, *_left_out(given)))


def _resolved(items: Sequence[dict[str, Any]], find: _Find) -> _Items:
    """Return items with those to which some only refer in their place. Raises InputError."""
    found = _Items()
    for number, item in enumerate(items):
        refers = item.get("type") == "item_reference" or item.keys() == {"id"}
        known = find(str(item.get("id", ""))) if refers else item
        if known is None:
            id = str(item.get("id", ""))[:80]
            raise InputError(
                f"input[{number}] refers to the item {id!r}, which this server does not have, or no longer: send it "
                "again, as clients do with store set to false"
            )
        found.append(known)
    return found


def _own_form(given: JsonValue) -> JsonValue:
    """Return tools, or a choice of them, which may be given as in chats, in the form of responses."""
    if isinstance(given, list):
        return [_own_form(each) for each in given]
    if isinstance(given, dict) and isinstance(function := given.get("function"), dict):
        return {"type": given.get("type"), **function}
    return given["type"] if isinstance(given, dict) and given.get("type") in CHOICES else given


def _left_out(given: _Items) -> list[str]:
    """Return a note about the items that no chat has a place for, if there are any."""
    kinds = {item["type"] for item in given if item.get("type") in _LEFT_OUT}
    return [f"input items of the types {', '.join(sorted(kinds))} were left out"] if kinds else []


def _includes_logprobs(include: Sequence[str]) -> bool:
    for name in include:
        if name not in _INCLUDED:
            raise InputError(f"include has {name[:80]!r}: this server knows {', '.join(_INCLUDED)}")
    return _LOGPROBS in include


def _conversation(instructions: str | None, items: _Items, *, first: int) -> Conversation:
    """Return the messages of a chat, each with the place of the first item of the input that it is made of.

    first: the first item's number in the input, below 0 for those of earlier responses.
    """
    found: list[Any] = [] if instructions is None else [{"role": "system", "content": instructions}]
    numbers, calls = [0] * len(found), list[JsonValue]()
    for number, item in enumerate(items, first):
        kind = item.get("type") or "message"
        if kind in _LEFT_OUT:
            continue
        if kind not in _CALLS:
            calls = []
        match kind:
            case "message":
                found.append({"role": item.get("role"), "content": _content(item.get("content"), number)})
            case _ if kind in _CALLS:
                if not calls:  # the calls of one answer are one message, as the model wrote them
                    found.append({"role": "assistant", "tool_calls": calls})
                calls.append(_call(item))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                output, id = _content(item.get("output"), number), item.get("call_id")
                place = _after_call(found, id)
                found.insert(place, {"role": "tool", "tool_call_id": id, "content": output})
                numbers.insert(place, number)
            case other:
                raise InputError(f"input[{number}] is of type {str(other)[:40]!r}: this server reads text and calls")
        numbers += [number] * (len(found) - len(numbers))
    if not found:
        raise InputError("input has no message: give one at least")
    places = [f"input[{number}]" if number >= 0 else "previous_response_id" for number in numbers]
    return Conversation.of(found, places, "call_id")


def _after_call(messages: Sequence[Any], id: JsonValue) -> int:
    """Return the place of a call's output, after the call and its other outputs; without such a call, the last.

    Clients put messages in between, such as a text that the same answer had.
    """
    for place in reversed(range(len(messages))):
        if any(each["id"] == id for each in messages[place].get("tool_calls", ())):
            after = range(place + 1, len(messages))
            return next((each for each in after if messages[each]["role"] != "tool"), len(messages))
    return len(messages)


def _call(item: Mapping[str, JsonValue]) -> JsonValue:
    """Return a call as chat completions have it, also of a tool that is no function: what it was given is JSON then."""
    name, arguments = item.get("name"), item.get("arguments")
    if item.get("type") == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input")})
    elif item.get("type") == "local_shell_call":
        name, arguments = "local_shell", json.dumps(item.get("action"))
    if namespace := item.get("namespace"):
        name = f"{namespace}.{name}"
    return {"id": item.get("call_id"), "function": {"name": name, "arguments": arguments}}


def _content(content: JsonValue, number: int) -> JsonValue:
    if not isinstance(content, list):
        return content
    parts: list[JsonValue] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or kind not in ("input_text", "output_text", "text", "refusal"):
            raise InputError(f"input[{number}] has a part that is not text: this server reads text only")
        parts.append({"type": "text", "text": part.get("refusal" if kind == "refusal" else "text")})
    return parts
