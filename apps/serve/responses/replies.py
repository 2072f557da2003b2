"""OpenAI's responses: the reply of /v1/responses, and its events."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from edgedecode import FinishReason
from edgedecode.decoding.stats import Stats

from ..logprobs import Entry, Logprob, response_form
from ..replies import Answered, Event, Reply, Written, calls_of, named_event, text_of, timings
from ..requests.asked import Asked, PastTurn
from ..requests.tools import Call

_Ended: TypeAlias = Literal["completed", "incomplete"]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class Reasoning(Struct, tag_field="type", tag="reasoning"):
    """What the model thought before its message or calls."""

    id: str
    summary: list[str]
    content: list[ReasoningText]


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[str]
    logprobs: list[Logprob]


class OutputMessage(Struct, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    status: Literal["completed", "incomplete", "in_progress"]
    content: list[OutputText]


class FunctionCall(Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str
    status: Literal["completed", "incomplete", "in_progress"]


Item: TypeAlias = Reasoning | OutputMessage | FunctionCall


class ResponseError(Struct):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Response(Struct, kw_only=True, tag_field="object", tag="response"):
    """timings: llama.cpp's figures, with the usage of a response that has ended."""

    id: str
    created_at: int
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    error: ResponseError | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[Item]
    instructions: str | None = None
    parallel_tool_calls: bool = False
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    temperature: float
    top_p: float | None
    max_output_tokens: int | None
    previous_response_id: str | None = None
    store: bool = False
    metadata: Any = {}
    truncation: str = "disabled"
    usage: ResponseUsage | None
    reasoning: Any = UNSET
    text: Any = UNSET
    top_logprobs: int | UnsetType = UNSET
    timings: dict[str, float] | UnsetType = UNSET


@dataclass(slots=True)
class ResponsesReply(Reply):
    """The reply of /v1/responses: one answer, which is a message or calls.

    keep: takes the id and the items of a whole answer, to which a later request may refer, and its request.
    """

    asked: Asked
    model: str
    keep: Callable[[str, PastTurn, Sequence[Item]], None] = lambda *_: None
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))
    _number: int = 0
    """Events so far."""
    _message: str = ""
    """The id of the message that is being written; empty: none."""
    _thought: Reasoning | None = None
    """What the model thought before its message or calls."""
    _output: list[Item] = field(default_factory=list)
    """The finished items."""
    _entries: list[Entry] = field(default_factory=list)
    """The log probabilities so far, if they are asked for."""
    _ended: FinishReason | None = None
    _failed: ResponseError | None = None

    def whole(self, answers: Sequence[Answered]) -> Response:
        (answer,) = answers
        if answer.thought:
            self.thinks(0, answer.thought)
        self.ends(0, answer, calls_of(self.asked, answer.text))
        self._keep()
        return self._response(answer.reason, [answer.stats])

    def begins(self, number: int, stats: Stats) -> list[Event]:
        empty = self._response(None, ())
        return [self._event("created", response=empty), self._event("in_progress", response=empty)]

    def writes(self, number: int, written: Written) -> list[Event]:
        found = [*self._thought_done(), *self._opened()]
        self._entries += written.logprobs
        logprobs = response_form(written.logprobs)
        delta = self._event("output_text.delta", **self._place, delta=written.text, logprobs=logprobs)
        return [*found, delta]

    def thinks(self, number: int, thought: str) -> list[Event]:
        found = list[Event]()
        if self._thought is None:
            self._thought = _thought("")
            empty = replace(self._thought, content=[])
            found = [self._event("output_item.added", output_index=0, item=empty)]
        self._thought.content[0].text += thought
        place = {"item_id": self._thought.id, "output_index": 0, "content_index": 0}
        return [*found, self._event("reasoning_text.delta", **place, delta=thought)]

    def _thought_done(self) -> list[Event]:
        """Return the events after a thought, if there was one and they have not been sent."""
        item = self._thought
        if item is None or self._output:
            return []
        self._output = [item]
        place = {"item_id": item.id, "output_index": 0, "content_index": 0}
        return [
            self._event("reasoning_text.done", **place, text=item.content[0].text),
            self._event("output_item.done", output_index=0, item=item),
        ]

    def ends(self, number: int, answer: Answered, calls: Sequence[Call]) -> list[Event]:
        self._ended = answer.reason
        found = self._thought_done()
        if calls:
            return [*found, *(event for call in calls for event in self._called(call))]
        found += self._opened()
        if answer.logprobs:  # of tokens that added no text
            found += self.writes(number, Written("", answer.logprobs))
        text = text_of(self.asked, answer.text)
        place, item = self._place, self._written(text, answer.reason)
        index = len(self._output)
        self._output.append(item)
        return [
            *found,
            self._event("output_text.done", **place, text=text, logprobs=response_form(self._entries)),
            self._event("content_part.done", **place, part=item.content[0]),
            self._event("output_item.done", output_index=index, item=item),
        ]

    def fails(self, message: str) -> list[Event]:
        self._failed = ResponseError("server_error", message)  # the last event says so
        return []

    def closes(self, stats: Sequence[Stats]) -> list[Event]:
        self._keep()
        found = self._response(self._ended, stats)
        return [self._event(found.status, response=found)]

    def _keep(self) -> None:
        if self.asked.turn is not None and not self._failed:
            self.keep(self._id, self.asked.turn, self._output)

    def encoded(self, event: Event) -> bytes:
        return named_event(event)

    @property
    def _id(self) -> str:
        return f"resp_{self.id}"

    @property
    def _place(self) -> dict[str, object]:
        return {"item_id": self._message, "output_index": int(self._thought is not None), "content_index": 0}

    def _opened(self) -> list[Event]:
        """Return the events that begin a message, unless they have been sent."""
        if self._message:
            return []
        self._message = _new_id("msg")
        item = OutputMessage(self._message, "assistant", "in_progress", [])
        added = self._event("output_item.added", output_index=len(self._output), item=item)
        return [added, self._event("content_part.added", **self._place, part=OutputText("", [], []))]

    def _called(self, call: Call) -> list[Event]:
        """Return the events of a call, the next item of the output."""
        item, index = self._call(call), len(self._output)
        self._output.append(item)
        begun, place = replace(item, arguments="", status="in_progress"), {"item_id": item.id, "output_index": index}
        return [
            self._event("output_item.added", output_index=index, item=begun),
            self._event("function_call_arguments.delta", **place, delta=call.arguments),
            self._event("function_call_arguments.done", **place, name=item.name, arguments=call.arguments),
            self._event("output_item.done", output_index=index, item=item),
        ]

    def _call(self, call: Call) -> FunctionCall:
        """Return a call as an item of the output, its name apart from its namespace."""
        functions = () if self.asked.tools is None else self.asked.tools.functions
        namespace = next((each.namespace for each in functions if each.name == call.name), "")
        return FunctionCall(
            id=_new_id("fc"),
            call_id=_new_id("call"),
            name=call.name.removeprefix(f"{namespace}."),
            namespace=namespace or UNSET,
            arguments=call.arguments,
            status="incomplete" if call.cut else "completed",
        )

    def _written(self, text: str, reason: FinishReason) -> OutputMessage:
        """Return a text as an item of the output."""
        part = OutputText(text, [], response_form(self._entries))
        return OutputMessage(self._message or _new_id("msg"), "assistant", _status(reason), [part])

    def _response(self, reason: FinishReason | None, stats: Sequence[Stats]) -> Response:
        found = Response(
            id=self._id,
            created_at=self.created,
            status="failed" if self._failed else _status(reason) if stats else "in_progress",
            error=self._failed,
            incomplete_details={"reason": "max_output_tokens"} if reason is FinishReason.LENGTH else None,
            model=self.model,
            output=[*self._output],
            temperature=self.asked.sampling.temperature,
            top_p=self.asked.sampling.top_p,
            max_output_tokens=self.asked.max_tokens,
            store=self.asked.turn is not None,
            usage=_usage(stats[0]) if stats else None,
            timings=timings(stats) if stats else UNSET,
        )
        return replace(found, **self.asked.echoed)

    def _event(self, kind: str, /, **fields: object) -> Event:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **fields}


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _status(reason: FinishReason | None) -> _Ended:
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


def _thought(text: str) -> Reasoning:
    return Reasoning(_new_id("rs"), [], [ReasoningText(text)])


def _usage(stats: Stats) -> ResponseUsage:
    return ResponseUsage(
        stats.prompt_tokens,
        # OpenAI's client requires the second figure, of what a prompt's caching costs there.
        {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
        stats.tokens,
        {"reasoning_tokens": stats.thought_tokens},
        stats.prompt_tokens + stats.tokens,
    )
