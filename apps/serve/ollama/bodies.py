"""Reads the bodies of /api/chat and /api/generate, as the OpenAI chat or completion that means the same.

Ollama ignores what it does not know. Here the reply names it: nothing that was asked for is dropped in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from edgedecode import InputError, Message, SamplingOptions
from edgedecode.text.thinking import THINKING, Effort
from edgedecode.typed_json import JsonValue

from ..requests.answer_form import Form, FormatBody, read_format
from ..requests.asked import Asked
from ..requests.chat_messages import CallBody, Conversation, MessageBody
from ..requests.fields import made_of, read_body, unfollowed
from ..requests.openai import (
    ChatBody,
    CompletionBody,
    Seed,
    Stops,
    asked_chat,
    asked_completion,
    can_continue,
    most_tokens,
)
from ..requests.sampling import SamplingBody, read_sampling
from ..requests.thinking import Budget
from ..requests.tool_fields import ToolBody
from .keep_alive import KeepAlive, keep_seconds
from .models import Name

_LARGEST = 1 << 53


class _Options(SamplingBody, frozen=True, kw_only=True):
    """num_predict: up to 0: no limit. num_ctx: positions that a conversation may take."""

    seed: Seed | None = None
    stop: Stops | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=_LARGEST)] | None = None
    num_ctx: Annotated[int, Meta(ge=0, le=_LARGEST)] | None = None


class _Message(MessageBody, frozen=True):
    thinking: str | None = None
    images: list[Any] | None = None
    tool_name: str | None = None


class _Body(Struct, frozen=True, kw_only=True):
    """shift, truncate: false refuses what is too long."""

    model: Name
    stream: bool | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: _Options | None = None
    think: bool | Budget | Effort | Literal[""] | None = None
    keep_alive: KeepAlive | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaChatBody(_Body, frozen=True, kw_only=True):
    messages: Annotated[list[_Message], Meta(max_length=10_000)] | None = None
    tools: list[ToolBody] | None = None


class GenerateBody(_Body, frozen=True, kw_only=True):
    """raw: continue the prompt as it is, without the chat template."""

    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None
    images: list[Any] | None = None


def read_chat(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /api/chat. Raises InputError."""
    value, body = read_body(data, OllamaChatBody)
    return _chat(body, value, body.messages or [], defaults, tools=body.tools)


def read_generate(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /api/generate. Raises InputError."""
    value, body = read_body(data, GenerateBody)
    if (body.raw or body.suffix) and (body.system or body.think):
        raise InputError("raw and suffix leave out the chat template, and with it system and think: leave out either")
    prompt = _Message("user", body.prompt or "", images=body.images)
    if not (body.raw or body.suffix) or not body.prompt:
        system = [_Message("system", body.system)] if body.system else []
        return _chat(body, value, [*system, prompt] if body.prompt else [], defaults, tools=None)
    _messages([prompt])
    given = made_of(_options(body), CompletionBody, prompt=body.prompt, suffix=body.suffix, **_head(body))
    asked = asked_completion(given, defaults, form=_form(body.format))
    return _limited(asked, body, value)


def _chat(
    body: _Body,
    value: Mapping[str, JsonValue],
    given: Sequence[_Message],
    defaults: SamplingOptions,
    *,
    tools: list[ToolBody] | None,
) -> Asked:
    think, tokens = _thinking(body.think)
    bodies = given or [_Message("user", "")]
    messages, form = _messages(bodies), _form(body.format)
    chat = made_of(
        _options(body),
        ChatBody,
        messages=bodies,
        tools=tools,
        reasoning_effort=think or None,
        reasoning_budget=tokens,
        truncation="disabled" if False in (body.truncate, body.shift) else "auto",
        continue_final_message=can_continue(messages[-1], tools, form),
        **_head(body),
    )
    asked = asked_chat(chat, defaults, messages=messages, form=form)
    asked = replace(asked, must_think=asked.think in THINKING)
    asked = asked if given else replace(asked, answers=0, stream=False)  # only whether the model is there
    return _limited(asked, body, value)


def _thinking(given: bool | int | str | None) -> tuple[str | None, int | None]:
    """Return how much to think, and the most tokens."""
    if given is None or isinstance(given, str):
        return given or None, None
    return "on" if given else "off", None if given is True or given is False else given


def _head(body: _Body) -> dict[str, Any]:
    return {"model": body.model, "stream": body.stream is not False}


def _options(body: _Body) -> _Options:
    """Return the options. Raises InputError, also for those that contradict each other."""
    options = body.options or _Options()
    options = made_of(options, _Options, mirostat=None) if options.mirostat == 1 else options
    try:
        read_sampling(options, SamplingOptions())
    except InputError as error:
        raise InputError(f"options.{error}") from None
    return options


def _limited(asked: Asked, body: _Body, value: Mapping[str, JsonValue]) -> Asked:
    """Return a request with its limits, and notes of what is not followed."""
    options, given = body.options or _Options(), value.get("options")
    notes = [*asked.notes, *unfollowed(value, body, also=["tools"])]
    notes += unfollowed(given if isinstance(given, dict) else {}, options, place="options.")
    notes += ["options.mirostat was not followed: version 1 is not offered"] if options.mirostat == 1 else []
    tokens = options.num_predict
    return replace(
        asked,
        context=options.num_ctx or None,
        keep_seconds=keep_seconds(body.keep_alive),
        max_tokens=None if tokens is None else most_tokens("options.num_predict", tokens or -1, least=1),
        notes=tuple(notes),
    )


def _form(given: str | dict[str, Any] | None) -> Form | None:
    """Return what the field `format` asks for. Raises InputError."""
    if isinstance(given, dict):
        return Form.of_schema(given, "format")
    return read_format(FormatBody("json_object")) if given else None


def _messages(given: Sequence[_Message]) -> list[Message]:
    """Return messages. A tool's result may name the function instead of the call, or neither. Raises InputError."""
    places = [f"messages[{number}]" for number in range(len(given))]
    found, unanswered = list[MessageBody](), dict[str, str]()
    for message, place in zip(given, places, strict=True):
        if message.images:
            raise InputError(f"{place} has images: this server reads text only")
        calls, id = message.tool_calls, message.tool_call_id
        if calls:
            calls = [made_of(call, CallBody, id=call.id or f"{place}.{number}") for number, call in enumerate(calls)]
            unanswered = {str(call.id): call.function.name for call in calls}
        elif message.role == "tool" and unanswered:
            named = [each for each, name in unanswered.items() if name == message.tool_name]
            id = id or (named or [*unanswered])[0]
            unanswered.pop(id, None)
        thought = message.reasoning_content or message.thinking
        found.append(made_of(message, MessageBody, tool_calls=calls, tool_call_id=id, reasoning_content=thought))
    return Conversation(found, places).read()
