"""What the reply of every API is; the JSON of OpenAI's, with llama.cpp's `timings`."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import ClassVar, Literal, Protocol, TypeAlias

from msgspec import UNSET, Struct, UnsetType, to_builtins
from msgspec.json import encode

from edgedecode import FinishReason
from edgedecode.decoding.stats import Stats

from .errors.forms import ErrorDetails
from .logprobs import ChatLogprobs, CompletionLogprobs, Entry, chat_form, completion_form
from .requests.asked import Asked
from .requests.tools import Call

FinishName: TypeAlias = Literal["stop", "length", "tool_calls"]
Event: TypeAlias = Mapping[str, object]
"""A part of a streamed reply."""


class CalledFunction(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    """schema_error: why the arguments do not follow the schema, of which a grammar may follow only a part."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    schema_error: str | UnsetType = UNSET


class AnswerMessage(Struct):
    """reasoning_content: what the model thought before its answer."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    finish_reason: FinishName
    logprobs: ChatLogprobs | None
    message: AnswerMessage


class CompletionChoice(Struct):
    index: int
    finish_reason: FinishName
    logprobs: CompletionLogprobs | None
    text: str


class Usage(Struct):
    """accepted_prediction_tokens: drafted tokens that the target accepted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class _Completed(Struct, tag_field="object"):
    """timings: llama.cpp's figures."""

    id: str
    created: int
    model: str
    usage: Usage
    timings: dict[str, float]


class ChatCompletion(_Completed, tag="chat.completion"):
    choices: list[ChatChoice]


class Completion(_Completed, tag="text_completion"):
    choices: list[CompletionChoice]


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished answer. text: without the thought before it. logprobs, tokens: of a stream, those not sent yet."""

    text: str
    reason: FinishReason
    stats: Stats
    logprobs: Sequence[Entry]
    thought: str = ""
    tokens: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A piece of an answer's text. logprobs: of its tokens, if asked for. report: how it was made, likewise."""

    text: str
    logprobs: Sequence[Entry] = ()
    report: Event | None = None
    tokens: Sequence[int] = ()


class Reply(Protocol):
    """How an API writes the reply to a request, whole or as events."""

    asked: Asked
    media_type: ClassVar[str] = "text/event-stream"
    done: ClassVar[bytes] = b""
    """What ends the stream."""
    waits: ClassVar[bytes] = b": %b\n\n"
    """What a stream that has not begun says now and then, a comment; empty: its form has no place for it."""

    def whole(self, answers: Sequence[Answered]) -> object:
        """Return the reply of a request without `stream`."""
        ...

    def begins(self, number: int, stats: Stats) -> list[Event]:
        """Return the events before an answer. number: the answer's, from 0. stats: with its prompt's figures."""
        return []

    def thinks(self, number: int, thought: str) -> list[Event]:
        """Return the events of a piece of a thought."""
        return []

    def writes(self, number: int, written: Written) -> list[Event]:
        """Return the events of a piece of text."""
        ...

    def ends(self, number: int, answer: Answered, calls: Sequence[Call]) -> list[Event]:
        """Return the events after an answer: log probabilities not sent yet, and its calls.

        calls: none if the text was written. It was then no call from its first character, whatever it reads like now.
        """
        ...

    def fails(self, message: str) -> list[Event]:
        """Return the events of an answer that fails in the middle. The status has been sent."""
        ...

    def closes(self, stats: Sequence[Stats]) -> list[Event]:
        """Return the events after all answers."""
        return []

    def encoded(self, event: Event) -> bytes:
        """Return an event as it is sent."""
        return b"data: %b\n\n" % encode(event)


def named_event(event: Event) -> bytes:
    """Return an event as it is sent with its type as its name."""
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), encode(event))


def calls_of(asked: Asked, text: str) -> tuple[Call, ...]:
    """Return the calls that a finished answer makes, the last of them maybe cut off."""
    return () if asked.tools is None else asked.tools.calls(text, ended=True)


def text_of(asked: Asked, text: str) -> str:
    """Return the text of an answer without calls: none of one that was cut off before it told which function it calls.

    What it has then is this server's way to write a call.
    """
    return "" if asked.tools is not None and asked.tools.is_call(text) else text


def tool_call(call: Call) -> ToolCall:
    """Return a call as replies have it, with an id of its own."""
    fault = UNSET if call.fault is None else call.fault
    return ToolCall(f"call_{secrets.token_hex(12)}", "function", CalledFunction(call.name, call.arguments), fault)


def _end(reason: FinishReason, calls: Sequence[Call]) -> FinishName:
    """Return OpenAI's name of why an answer ended."""
    if calls and not calls[-1].cut and reason is FinishReason.STOP:
        return "tool_calls"
    return "length" if reason is FinishReason.LENGTH else "stop"


@dataclass(slots=True)
class CompletionsReply(Reply):
    """The reply of both endpoints of completions."""

    asked: Asked
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))

    done = b"data: [DONE]\n\n"

    def whole(self, answers: Sequence[Answered]) -> ChatCompletion | Completion:
        every = [each.stats for each in answers]
        head = self._id, self.created, self.model, usage(every, each=self.asked.each), timings(every)
        if self.asked.chat:
            chats = [self._chat_choice(number, each) for number, each in enumerate(answers)]
            return ChatCompletion(*head, chats)
        texts = [
            CompletionChoice(number, _end(each.reason, ()), completion_form(each.logprobs), each.text)
            for number, each in enumerate(answers)
        ]
        return Completion(*head, texts)

    def _chat_choice(self, number: int, answer: Answered) -> ChatChoice:
        calls = calls_of(self.asked, answer.text)
        message = AnswerMessage(
            "assistant",
            None if calls else text_of(self.asked, answer.text),
            [*map(tool_call, calls)] if calls else UNSET,
            answer.thought or UNSET,
        )
        return ChatChoice(number, _end(answer.reason, calls), chat_form(answer.logprobs), message)

    def begins(self, number: int, stats: Stats) -> list[Event]:
        said = "" if self.asked.tools is None else None  # it may be a call, which has no text
        return [self._part(number, {"role": "assistant", "content": said})] if self.asked.chat else []

    def thinks(self, number: int, thought: str) -> list[Event]:
        return [self._part(number, {"reasoning_content": thought})]

    def writes(self, number: int, written: Written) -> list[Event]:
        text = written.text
        part = self._part(number, {"content": text}, text=text, logprobs=written.logprobs)
        return [part if written.report is None else part | {"edgedecode": written.report}]

    def ends(self, number: int, answer: Answered, calls: Sequence[Call]) -> list[Event]:
        written = [to_builtins(tool_call(call)) for call in calls]
        deltas = [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(written)]
        end = self._part(number, {}, _end(answer.reason, calls), logprobs=answer.logprobs)
        return [*(self._part(number, delta) for delta in deltas), end]

    def fails(self, message: str) -> list[Event]:
        return [{"error": ErrorDetails(message, "server_error")}]

    def closes(self, stats: Sequence[Stats]) -> list[Event]:
        if not self.asked.include_usage or not stats:
            return []
        return [self._head | {"choices": [], "usage": usage(stats, each=self.asked.each), "timings": timings(stats)}]

    def _part(
        self,
        number: int,
        delta: Event,
        reason: FinishName | None = None,
        *,
        text: str = "",
        logprobs: Sequence[Entry] = (),
    ) -> dict[str, object]:
        body: dict[str, object] = {"index": number, "finish_reason": reason}
        if self.asked.chat:
            body |= {"logprobs": chat_form(logprobs), "delta": delta}
        else:
            body |= {"logprobs": completion_form(logprobs), "text": text}
        return self._head | {"choices": [body]}

    @property
    def _id(self) -> str:
        return f"{'chatcmpl' if self.asked.chat else 'cmpl'}-{self.id}"

    @property
    def _head(self) -> dict[str, object]:
        """What each event begins with."""
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self.created, "model": self.model}


def usage(answers: Sequence[Stats], *, each: int) -> Usage:
    """Return the tokens of all answers to a request. each: answers to a prompt, which is counted once."""
    prompt, written = sum(stats.prompt_tokens for stats in answers[::each]), sum(stats.tokens for stats in answers)
    accepted, proposed = sum(stats.accepted for stats in answers), sum(stats.proposed for stats in answers)
    details = {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": proposed - accepted,
        "reasoning_tokens": sum(stats.thought_tokens for stats in answers),
    }
    cached = {"cached_tokens": sum(stats.cached_tokens for stats in answers[::each])}
    return Usage(prompt, written, prompt + written, cached, details)


def timings(answers: Sequence[Stats]) -> dict[str, float]:
    """Return llama.cpp's figures of the first answer, how many turns were dropped to make room for it, and how many
    tokens are those of a device's model whose target did not answer.
    """
    stats = answers[0]
    seconds = stats.time.total
    dropped = {"dropped_turns": stats.dropped_turns} if stats.dropped_turns else {}
    alone = {"alone_n": stats.alone_tokens} if stats.alone_tokens else {}
    return {
        "prompt_n": stats.prompt_tokens - stats.cached_tokens,
        "cache_n": stats.cached_tokens,
        "prompt_ms": round(1000 * stats.prefill_seconds, 3),
        "predicted_n": stats.tokens,
        "predicted_ms": round(1000 * seconds, 3),
        "predicted_per_second": round(stats.tokens_per_second, 3),
        "draft_n": stats.proposed,
        "draft_n_accepted": stats.accepted,
        **dropped,
        **alone,
    }
