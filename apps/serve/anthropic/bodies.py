"""Reads the bodies of /v1/messages and /v1/messages/count_tokens, as the OpenAI chat that means the same.

Clients send fields and blocks of servers that do more than this one. Those are left out, and the reply's header names
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from edgedecode import InputError, SamplingOptions
from edgedecode.text.thinking import Effort
from edgedecode.typed_json import JsonValue

from ..requests.answer_form import Form, FormatBody, read_format
from ..requests.asked import Asked
from ..requests.chat_messages import Conversation
from ..requests.fields import made_of, read_body, typed_part, unfollowed
from ..requests.openai import ChatBody, Most, Seed, Stop, asked_chat, can_continue, most_tokens
from ..requests.sampling import SamplingBody
from ..requests.thinking import ThinkingField
from ..requests.tool_fields import ChoiceBody, ToolBody

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""What `tool_choice.type` may be, besides a tool, and OpenAI's word for it."""
_BILLING = "x-anthropic-billing-header:"
"""What a line of Claude Code's system prompt begins with. It is no text for a model, and another one in each request:
no request would continue the conversation before."""
_NO_EFFECT = ("betas", "cache_control", "inference_geo", "speed", "user_profile_id", "workspace_id", "diagnostics")


class NoThreads(InputError):
    """A request is to be held, or to go on with one that was. Clients that read so send the whole conversation."""


class _Block(Struct, frozen=True, kw_only=True):
    """A part of a message. content: of a tool's result, or of a document, whose `source` has it."""

    type: Annotated[str, Meta(description="text, tool_use, tool_result, thinking, document; others are left out.")]
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    source: dict[str, Any] | None = None
    title: str | None = None


class _Turn(Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _FunctionBlock(Struct, frozen=True, kw_only=True):
    """type: nothing or `custom`. Tools of other types are the other server's own."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(Struct, frozen=True, kw_only=True):
    """disable_parallel_tool_use: false allows several calls; default: one."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Output(Struct, frozen=True, kw_only=True):
    effort: Effort | None = None
    format: FormatBody | None = None


class MessagesBody(SamplingBody, frozen=True, kw_only=True):
    """The body of /v1/messages, and of /v1/messages/count_tokens. output_format: as in output_config."""

    messages: Annotated[list[_Turn], Meta(min_length=1, max_length=10_000)]
    model: str | None = None
    system: str | list[_Block] | None = None
    max_tokens: Most | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=16)] | None = None
    stream: bool | None = None
    tools: list[_FunctionBlock] | None = None
    tool_choice: _Choice | None = None
    thinking: ThinkingField | None = None
    output_config: _Output | None = None
    output_format: FormatBody | None = None
    seed: Seed | None = None
    thread: Annotated[dict[str, Any], Meta(description="Refused: this server holds no conversation.")] | None = None


def read_messages(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body. Raises InputError."""
    value, body = read_body(data, MessagesBody)
    if body.thread is not None:
        raise NoThreads("thread: this server holds no conversations: send the whole one without this field")
    conversation, notes = _conversation(body)
    messages, form = conversation.read(), _form(body)
    chat = made_of(
        body,
        ChatBody,
        messages=conversation.bodies,
        stop=body.stop_sequences,
        max_tokens=None,
        tools=None if body.tools is None else [_tool(each) for each in body.tools],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use is False,
        reasoning_effort=body.output_config.effort if body.thinking and body.output_config else None,
        continue_final_message=can_continue(messages[-1], body.tools, form),
    )
    asked = asked_chat(chat, defaults, messages=messages, form=form)
    most = None if body.max_tokens is None else most_tokens("max_tokens", body.max_tokens, least=1)
    return replace(asked, max_tokens=most, notes=(*asked.notes, *notes, *unfollowed(value, body, also=_NO_EFFECT)))


def _conversation(body: MessagesBody) -> tuple[Conversation, list[str]]:
    """Return the messages of a chat, each with its place in the body, and notes. Raises InputError."""
    found, places, left = list[Any](), list[str](), set[str]()
    if system := _system(body.system, left):
        found.append({"role": "system", "content": system})
        places.append("system")
    for number, message in enumerate(body.messages):
        place = f"messages[{number}]"
        if isinstance(message.content, str):
            made: list[Any] = [{"role": message.role, "content": message.content}]
        else:
            made = [*_messages(message.role, message.content, place, left)]
        found += made
        places += [place] * len(made)
    notes = [f"blocks of the types {', '.join(sorted(left))} were left out"] if left else []
    return Conversation.of(found, places, "tool_use_id"), notes


def _system(given: str | list[_Block] | None, left: set[str]) -> str:
    text = given if isinstance(given, str) else _joined(given or [], "system", left)
    return "\n".join(line for line in text.split("\n") if not line.startswith(_BILLING))


def _messages(role: str, blocks: Sequence[_Block], place: str, left: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a message's blocks: the results of calls first, which answer the message before."""
    calls, rest = list[JsonValue](), list[_Block]()
    for number, block in enumerate(blocks):
        if block.type == "tool_use":
            calls.append({"id": block.id, "function": {"name": block.name, "arguments": block.input or {}}})
        elif block.type == "tool_result":
            text = _result(block, f"{place}.content[{number}]", left)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
        elif block.type != "thinking":
            rest.append(block)
    thought = "\n".join(block.thinking for block in blocks if block.thinking)
    text = _joined(rest, place, left)
    if calls and role != "assistant":
        raise InputError(f"{place} has a tool_use: only the assistant's messages make calls")
    if calls or thought or rest or not blocks:
        yield {"role": role, "content": text, "reasoning_content": thought, "tool_calls": calls or None}


def _result(block: _Block, place: str, left: set[str]) -> str:
    content = block.content
    text = content if isinstance(content, str) else _joined(_inner(content or [], place), place, left)
    return f"Error: {text}" if block.is_error else text


def _joined(blocks: Sequence[_Block], place: str, left: set[str]) -> str:
    """Return the text of blocks; add to `left` the types of those that have none. Raises InputError for pictures."""
    texts = list[str]()
    for block in blocks:
        source = block.source or {}
        if block.type == "image" or source.get("type") in ("base64", "url", "file"):
            raise InputError(f"{place} has a block of type {block.type[:40]!r}: this server reads text only")
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type in ("document", "search_result"):
            inner = source.get("data") or source.get("content") or block.content or ""
            text = inner if isinstance(inner, str) else _joined(_inner(inner, place), place, left)
            texts += [each for each in (block.title, text) if each]
        else:
            left.add(block.type[:40])
    return "\n".join(texts)


def _inner(given: Sequence[Any], place: str) -> list[_Block]:
    """Return the blocks in a block. Raises InputError."""
    return typed_part([*given], list[_Block], f"{place}.content")


def _tool(tool: _FunctionBlock) -> ToolBody:
    kind = "function" if tool.type in (None, "custom") else tool.type
    return ToolBody(kind, None, tool.name, tool.description, tool.input_schema, tool.strict)


def _choice(choice: _Choice | None) -> str | ChoiceBody | None:
    if choice is None or choice.type in _CHOICES:
        return None if choice is None else _CHOICES[choice.type]
    return ChoiceBody(type="function", name=choice.name)


def _form(body: MessagesBody) -> Form | None:
    output = body.output_config or _Output()
    given = {"output_config.format": output.format, "output_format": body.output_format}
    return next((read_format(each, name) for name, each in given.items() if each is not None), None)
