"""Anthropic's messages: the reply of /v1/messages, and its events."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from edgedecode import FinishReason
from edgedecode.decoding.stats import Stats

from ..errors.forms import AnthropicError, ErrorDetails
from ..replies import Answered, Event, Reply, Written, calls_of, named_event, text_of
from ..requests.asked import Asked
from ..requests.tools import Call

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """signature: nothing here checks it, and clients leave out thoughts without one."""

    thinking: str
    signature: str = "unsigned"


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """schema_error: why the input does not follow the schema, of which a grammar may follow only a part."""

    id: str
    name: str
    input: dict[str, Any]
    schema_error: str | UnsetType = UNSET


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct):
    """input_tokens: those that were not in the KV cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(Struct, tag_field="type", tag="message"):
    """stop_reason: null in the first event of a stream."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Struct):
    """The reply of /v1/messages/count_tokens."""

    input_tokens: int


@dataclass(slots=True)
class MessagesReply(Reply):
    """The reply of /v1/messages: one answer."""

    asked: Asked
    model: str
    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")
    _content: list[Block] = field(default_factory=list)
    """The blocks that have begun; of a stream, the last one may not have ended."""
    _open: bool = False
    _failed: bool = False

    waits = b': %b\nevent: ping\ndata: {"type": "ping"}\n\n'

    def whole(self, answers: Sequence[Answered]) -> AnthropicMessage:
        (answer,) = answers
        calls = [call for call in calls_of(self.asked, answer.text) if not call.cut]
        if answer.thought:
            self._content.append(ThinkingBlock(answer.thought))
        self._content += map(_called, calls) if calls else [TextBlock(text_of(self.asked, answer.text))]
        return self._message(answer.stats, _reason(answer, calls))

    def begins(self, number: int, stats: Stats) -> list[Event]:
        return [_event("message_start", message=self._message(stats, None)), _event("ping")]

    def thinks(self, number: int, thought: str) -> list[Event]:
        return [*self._opened(ThinkingBlock("", "")), self._delta("thinking_delta", thinking=thought)]

    def writes(self, number: int, written: Written) -> list[Event]:
        text = written.text
        return [*self._opened(TextBlock("")), self._delta("text_delta", text=text)] if text else []

    def ends(self, number: int, answer: Answered, calls: Sequence[Call]) -> list[Event]:
        found, whole = list[Event](), [call for call in calls if not call.cut]
        for call in whole:
            block = _called(call)
            begun = ToolUseBlock(block.id, block.name, {}, block.schema_error)
            found += [*self._opened(begun, again=True), self._delta("input_json_delta", partial_json=call.arguments)]
        if not whole:
            found += self._opened(TextBlock(""))
        reason = _reason(answer, whole)
        delta = {"stop_reason": reason, "stop_sequence": answer.stats.stop_string or None}
        return [*found, *self._closed(), _event("message_delta", delta=delta, usage=_usage(answer.stats))]

    def fails(self, message: str) -> list[Event]:
        self._failed = True
        return [{"type": "error", "error": AnthropicError.of(500, ErrorDetails(message, "server_error")).error}]

    def closes(self, stats: Sequence[Stats]) -> list[Event]:
        return [] if self._failed else [_event("message_stop")]

    def encoded(self, event: Event) -> bytes:
        return named_event(event)

    def _opened(self, block: Block, *, again: bool = False) -> list[Event]:
        """Return the events that begin a block, unless one of its kind is open. again: also then."""
        if self._open and not again and type(self._content[-1]) is type(block):
            return []
        ended = self._closed()
        self._content.append(block)
        self._open = True
        return [*ended, _event("content_block_start", index=len(self._content) - 1, content_block=block)]

    def _closed(self) -> list[Event]:
        """Return the events that end the open block, if there is one."""
        if not self._open:
            return []
        self._open = False
        signed = isinstance(self._content[-1], ThinkingBlock)
        signature = [self._delta("signature_delta", signature=ThinkingBlock("").signature)] if signed else []
        return [*signature, _event("content_block_stop", index=len(self._content) - 1)]

    def _delta(self, kind: str, **fields: str) -> Event:
        return _event("content_block_delta", index=len(self._content) - 1, delta={"type": kind, **fields})

    def _message(self, stats: Stats, reason: StopReason | None) -> AnthropicMessage:
        stop = (stats.stop_string or None) if reason is not None else None  # it may be ahead of the events
        return AnthropicMessage(self.id, "assistant", self.model, [*self._content], reason, stop, _usage(stats))


def _event(kind: str, /, **fields: object) -> Event:
    return {"type": kind, **fields}


def _reason(answer: Answered, calls: Sequence[Call]) -> StopReason:
    if answer.reason is FinishReason.LENGTH:
        return "model_context_window_exceeded" if answer.stats.context_full else "max_tokens"
    if answer.stats.stop_string:
        return "stop_sequence"
    return "tool_use" if calls else "end_turn"


def _called(call: Call) -> ToolUseBlock:
    """Return a call, whose arguments are an object and no text."""
    fault = UNSET if call.fault is None else call.fault
    return ToolUseBlock(f"toolu_{secrets.token_hex(12)}", call.name, json.loads(call.arguments), fault)


def _usage(stats: Stats) -> MessageUsage:
    return MessageUsage(stats.prompt_tokens - stats.cached_tokens, 0, stats.cached_tokens, stats.tokens)
