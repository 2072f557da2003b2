"""The JSON of OpenAI's replies, with llama.cpp's `timings`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Protocol, TypeAlias

from edgedecode import FinishReason
from edgedecode.decoding.stats import Stats

from .logprobs import Entry, chat_form, completion_form
from .requests.asked import Asked
from .requests.tools import Call

_NAMES = {FinishReason.LENGTH: "length"}


def finish_name(reason: FinishReason | None) -> str | None:
    """Return OpenAI's name of a reason."""
    return None if reason is None else _NAMES.get(reason, "stop")


Event: TypeAlias = Mapping[str, object]
"""A part of a streamed reply."""


class Reply(Protocol):
    """How an endpoint writes its reply, whole or as events. `number` is that of the answer, from 0."""

    asked: Asked
    done: bytes
    """What ends the stream."""

    def whole(
        self,
        texts: Sequence[str],
        reasons: Sequence[FinishReason | None],
        stats: Sequence[Stats],
        logprobs: Sequence[Sequence[Entry]],
        thoughts: Sequence[str],
    ) -> dict[str, object]:
        """Return the reply of a request without `stream`. thoughts: each answer's, which its text lacks."""
        ...

    def begins(self, number: int) -> Sequence[Event]:
        """Return the events before an answer."""
        ...

    def writes(
        self,
        number: int,
        text: str,
        report: Mapping[str, object] | None = None,
        logprobs: Sequence[Entry] = (),
    ) -> Sequence[Event]:
        """Return the events of a piece of text. report: how it was made. logprobs: of its tokens, if asked for."""
        ...

    def thinks(self, number: int, thought: str) -> Sequence[Event]:
        """Return the events of a piece of a thought."""
        ...

    def ends(
        self,
        number: int,
        text: str,
        reason: FinishReason | None,
        calls: Sequence[Call],
        logprobs: Sequence[Entry] = (),
    ) -> Sequence[Event]:
        """Return the events after an answer. text: the whole answer's. calls: those it makes, which were not written.

        logprobs: those that no earlier event had.
        """
        ...

    def fails(self, message: str) -> Sequence[Event]:
        """Return the events of an answer that fails in the middle. The status has been sent."""
        ...

    def closes(self, stats: Sequence[Stats]) -> Sequence[Event]:
        """Return the events after all answers."""
        ...

    def encoded(self, event: Event) -> bytes:
        """Return an event as it is sent."""
        ...


def calls_of(asked: Asked, text: str, reason: FinishReason | None) -> tuple[Call, ...]:
    """Return the calls that an answer makes, the last of them maybe cut off."""
    return () if asked.tools is None else asked.tools.calls(text, ended=reason is not None)


def text_of(asked: Asked, text: str) -> str:
    """Return the text of an answer without calls: none of one that was cut off before it told which function it calls.

    What it has then is this server's way to write a call.
    """
    return "" if asked.tools is not None and asked.tools.is_call(text) else text


def _end(reason: FinishReason | None, calls: Sequence[Call]) -> str | None:
    """Return OpenAI's name of why an answer ended."""
    whole = calls and not calls[-1].cut and reason is FinishReason.STOP
    return "tool_calls" if whole else finish_name(reason)


@dataclass(slots=True)
class CompletionsReply:
    """The reply of /v1/chat/completions and /v1/completions."""

    asked: Asked
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))

    done = b"data: [DONE]\n\n"

    def whole(
        self,
        texts: Sequence[str],
        reasons: Sequence[FinishReason | None],
        stats: Sequence[Stats],
        logprobs: Sequence[Sequence[Entry]],
        thoughts: Sequence[str],
    ) -> dict[str, object]:
        choices: list[dict[str, object]] = []
        for number, (text, reason, entries, thought) in enumerate(zip(texts, reasons, logprobs, thoughts, strict=True)):
            calls = calls_of(self.asked, text, reason)
            body: dict[str, object] = {"index": number, "finish_reason": _end(reason, calls)}
            body["logprobs"] = self._logprobs(entries)
            if calls:
                said: dict[str, object] = {"content": None, "tool_calls": [call.as_dict() for call in calls]}
            else:
                said = {"content": text_of(self.asked, text)}
            if thought:
                said["reasoning_content"] = thought
            body |= {"message": {"role": "assistant", **said}} if self.asked.chat else {"text": text}
            choices.append(body)
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return self._head(kind) | {"choices": choices} | self._figures(stats)

    def begins(self, number: int) -> Sequence[Event]:
        return [self._part(number, {"role": "assistant", "content": ""}, None)] if self.asked.chat else []

    def writes(
        self,
        number: int,
        text: str,
        report: Mapping[str, object] | None = None,
        logprobs: Sequence[Entry] = (),
    ) -> Sequence[Event]:
        part = self._part(number, {"content": text}, None, text=text, logprobs=logprobs)
        return [part if report is None else part | {"edgedecode": report}]

    def thinks(self, number: int, thought: str) -> Sequence[Event]:
        return [self._part(number, {"reasoning_content": thought}, None)]

    def ends(
        self,
        number: int,
        text: str,
        reason: FinishReason | None,
        calls: Sequence[Call],
        logprobs: Sequence[Entry] = (),
    ) -> Sequence[Event]:
        deltas = [{"tool_calls": [{"index": index, **call.as_dict()}]} for index, call in enumerate(calls)]
        end = self._part(number, {}, _end(reason, calls), logprobs=logprobs)
        return [*(self._part(number, delta, None) for delta in deltas), end]

    def fails(self, message: str) -> Sequence[Event]:
        return [{"error": {"message": message, "type": "server_error", "param": None, "code": None}}]

    def closes(self, stats: Sequence[Stats]) -> Sequence[Event]:
        if not self.asked.include_usage or not stats:
            return []
        return [self._head(self._kind) | {"choices": []} | self._figures(stats)]

    def encoded(self, event: Event) -> bytes:
        return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.asked.chat else "text_completion"

    def _figures(self, stats: Sequence[Stats]) -> dict[str, object]:
        return {"usage": usage(stats, each=self.asked.each), "timings": timings(stats)}

    def _logprobs(self, entries: Sequence[Entry]) -> dict[str, object] | None:
        return chat_form(entries) if self.asked.chat else completion_form(entries)

    def _part(
        self,
        number: int,
        delta: Mapping[str, object],
        reason: str | None,
        *,
        text: str = "",
        logprobs: Sequence[Entry] = (),
    ) -> dict[str, object]:
        body: dict[str, object] = {"index": number, "finish_reason": reason, "logprobs": self._logprobs(logprobs)}
        body |= {"delta": delta} if self.asked.chat else {"text": text}
        return self._head(self._kind) | {"choices": [body]}

    def _head(self, kind: str) -> dict[str, object]:
        prefix = "chatcmpl" if self.asked.chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def usage(answers: Sequence[Stats], *, each: int) -> dict[str, object]:
    """Return the tokens of all answers to a request. each: answers to a prompt, which is counted once."""
    prompt, written = sum(stats.prompt_tokens for stats in answers[::each]), sum(stats.tokens for stats in answers)
    accepted, proposed = sum(stats.accepted for stats in answers), sum(stats.proposed for stats in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_tokens for stats in answers[::each])},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
            "reasoning_tokens": sum(stats.thought_tokens for stats in answers),
        },
    }


def timings(answers: Sequence[Stats]) -> dict[str, object]:
    """Return llama.cpp's figures of the first answer, and how many turns were dropped to make room for it."""
    stats = answers[0]
    seconds = stats.time.total
    dropped = {"dropped_turns": stats.dropped_turns} if stats.dropped_turns else {}
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
    }
