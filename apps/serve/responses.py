"""OpenAI's responses: the reply of /v1/responses, and its events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import time
from typing import Any, Literal, TypeAlias

from edgedecode import FinishReason
from edgedecode.decoding.stats import Stats

from .logprobs import Entry, response_form
from .replies import Event, calls_of, text_of, timings
from .requests.asked import Asked
from .requests.tools import Call

ResponseStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class ResponseError:
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


@dataclass(slots=True)
class ResponsesReply:
    """The reply of /v1/responses: one answer, which is a message or calls.

    keep: takes the items of a whole answer, to which a later request may refer.
    """

    asked: Asked
    model: str
    keep: Callable[[Sequence[Mapping[str, Any]]], None] = lambda _: None
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))
    _number: int = 0
    """Events so far."""
    _item: dict[str, Any] = field(default_factory=dict)
    """What identifies the message that is being written; empty: none."""
    _thought: dict[str, Any] | None = None
    """The item of what the model thought before its message or calls."""
    _output: list[dict[str, Any]] = field(default_factory=list)
    """The finished items."""
    _entries: list[Entry] = field(default_factory=list)
    """The log probabilities so far, if they are asked for."""
    _ended: FinishReason | None = None
    _failed: ResponseError | None = None

    done = b""

    def whole(
        self,
        texts: Sequence[str],
        reasons: Sequence[FinishReason | None],
        stats: Sequence[Stats],
        logprobs: Sequence[Sequence[Entry]],
        thoughts: Sequence[str],
    ) -> dict[str, object]:
        text, reason = texts[0], reasons[0]
        self._entries += logprobs[0]
        calls = calls_of(self.asked, text, reason)
        said = [*map(self._call_item, calls)] or [self._message(text_of(self.asked, text), reason)]
        self._output = [*([_thought_item(thoughts[0])] if thoughts[0] else []), *said]
        self._keep()
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
        found = [*self._thought_done(), *([] if self._item else self._opened())]
        self._entries += logprobs
        delta = self._event("output_text.delta", **self._place, delta=text, logprobs=response_form(logprobs))
        return [*found, delta]

    def thinks(self, number: int, thought: str) -> Sequence[Event]:
        found = list[Event]()
        if self._thought is None:
            self._thought = _thought_item("")
            found = [self._event("output_item.added", output_index=0, item={**self._thought, "content": []})]
        self._thought["content"][0]["text"] += thought
        place = {"item_id": self._thought["id"], "output_index": 0, "content_index": 0}
        return [*found, self._event("reasoning_text.delta", **place, delta=thought)]

    def _thought_done(self) -> list[Event]:
        """Return the events after a thought, if there was one and they have not been sent."""
        item = self._thought
        if item is None or self._output:
            return []
        self._output = [item]
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        return [
            self._event("reasoning_text.done", **place, text=item["content"][0]["text"]),
            self._event("output_item.done", output_index=0, item=item),
        ]

    def ends(
        self,
        number: int,
        text: str,
        reason: FinishReason | None,
        calls: Sequence[Call],
        logprobs: Sequence[Entry] = (),
    ) -> Sequence[Event]:
        self._ended = reason
        found = self._thought_done()
        if calls:
            return [*found, *(event for call in calls for event in self._called(call))]
        text = text_of(self.asked, text)
        found += [] if self._item else self._opened()
        if logprobs:  # of tokens that added no text
            found = [*found, *self.writes(number, "", None, logprobs)]
        place, item = self._place, {**self._message(text, reason), "id": self._item["id"]}
        index = len(self._output)
        self._output.append(item)
        return [
            *found,
            self._event("output_text.done", **place, text=text, logprobs=response_form(self._entries)),
            self._event("content_part.done", **place, part=item["content"][0]),
            self._event("output_item.done", output_index=index, item=item),
        ]

    def fails(self, message: str) -> Sequence[Event]:
        self._failed = ResponseError("server_error", message)  # the last event says so
        return []

    def closes(self, stats: Sequence[Stats]) -> Sequence[Event]:
        self._keep()
        found = self._response(self._ended, stats)
        return [self._event(str(found["status"]), response=found)]

    def _keep(self) -> None:
        if self.asked.stored:
            self.keep(self._output)

    def encoded(self, event: Event) -> bytes:
        return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()

    @property
    def _place(self) -> dict[str, object]:
        return {"item_id": self._item["id"], "output_index": int(self._thought is not None), "content_index": 0}

    def _opened(self) -> list[Event]:
        """Return the events that begin a message."""
        self._item = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        item = {**self._item, "status": "in_progress", "content": []}
        added = self._event("output_item.added", output_index=len(self._output), item=item)
        return [added, self._event("content_part.added", **self._place, part=_part("", ()))]

    def _called(self, call: Call) -> list[Event]:
        """Return the events of a call, the next item of the output."""
        item, index = self._call_item(call), len(self._output)
        self._output.append(item)
        place = {"item_id": item["id"], "output_index": index}
        return [
            self._event("output_item.added", output_index=index, item={**item, "arguments": ""}),
            self._event("function_call_arguments.delta", **place, delta=call.arguments),
            self._event("function_call_arguments.done", **place, name=item["name"], arguments=call.arguments),
            self._event("output_item.done", output_index=index, item=item),
        ]

    def _call_item(self, call: Call) -> dict[str, Any]:
        """Return a call as an item of the output, its name apart from its namespace."""
        functions = () if self.asked.tools is None else self.asked.tools.functions
        namespace = next((each.namespace for each in functions if each.name == call.name), "")
        ids = {"id": f"fc_{secrets.token_hex(12)}", "call_id": call.as_dict()["id"], "type": "function_call"}
        name = {"name": call.name.removeprefix(f"{namespace}.")} | ({"namespace": namespace} if namespace else {})
        return {**ids, **name, "arguments": call.arguments, "status": "incomplete" if call.cut else "completed"}

    def _message(self, text: str, reason: FinishReason | None) -> dict[str, Any]:
        """Return a text as an item of the output."""
        ids = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        return {**ids, "status": _status(reason), "content": [_part(text, self._entries)]}

    def _response(self, reason: FinishReason | None, stats: Sequence[Stats]) -> dict[str, object]:
        cut = reason is FinishReason.LENGTH
        status: ResponseStatus = "failed" if self._failed else _status(reason) if stats else "in_progress"
        found: dict[str, object] = {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": asdict(self._failed) if self._failed else None,
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


def _status(reason: FinishReason | None) -> Literal["completed", "incomplete"]:
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


def _thought_item(thought: str) -> dict[str, Any]:
    """Return a thought as an item of the output."""
    content = [{"type": "reasoning_text", "text": thought}]
    return {"id": f"rs_{secrets.token_hex(12)}", "type": "reasoning", "summary": [], "content": content}


def _part(text: str, entries: Sequence[Entry]) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": response_form(entries)}


def _usage(stats: Stats) -> dict[str, object]:
    return {
        "input_tokens": stats.prompt_tokens,
        # OpenAI's client requires the second figure, of what a prompt's caching costs there.
        "input_tokens_details": {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": stats.tokens,
        "output_tokens_details": {"reasoning_tokens": stats.thought_tokens},
        "total_tokens": stats.prompt_tokens + stats.tokens,
    }
