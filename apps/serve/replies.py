"""The JSON of OpenAI's replies, with llama.cpp's `timings`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time

from edgedecode import FinishReason
from edgedecode.decoding.stats import Stats

from .asked import Asked
from .tools import Call

__all__ = ["Reply", "finish_name", "timings", "usage"]

_NAMES = {FinishReason.LENGTH: "length"}


def finish_name(reason: FinishReason | None) -> str | None:
    """Return OpenAI's name of a reason."""
    return None if reason is None else _NAMES.get(reason, "stop")


@dataclass(frozen=True, slots=True)
class Reply:
    """The fields that all parts of a reply share."""

    asked: Asked
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))

    def whole(
        self, texts: Sequence[str], reasons: Sequence[FinishReason | None], stats: Sequence[Stats]
    ) -> dict[str, object]:
        """Return the reply of a request without `stream`."""
        choices: list[dict[str, object]] = []
        for number, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
            body: dict[str, object] = {"index": number, "finish_reason": finish_name(reason), "logprobs": None}
            call = self.call(text)
            if call is not None:
                message = {"role": "assistant", "content": None, "tool_calls": [call.as_dict()]}
                body |= {"message": message, "finish_reason": "tool_calls"}
            else:
                body |= {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
            choices.append(body)
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return self._head(kind) | {"choices": choices, "usage": usage(stats), "timings": timings(stats)}

    def first(self, number: int) -> dict[str, object]:
        """Return the part that begins a streamed chat answer."""
        return self._part(number, {"role": "assistant", "content": ""}, None)

    def piece(self, number: int, text: str, reason: FinishReason | None = None) -> dict[str, object]:
        """Return a part with text, or the last one with its reason."""
        return self._part(number, {"content": text} if text or reason is None else {}, reason, text=text)

    def call(self, text: str) -> Call | None:
        """Return the call that a complete answer makes; None if it makes none."""
        return None if self.asked.tools is None else self.asked.tools.call(text)

    def calling(self, number: int, call: Call) -> list[dict[str, object]]:
        """Return the two parts that stream a call: the call itself, and the end."""
        part = self._part(number, {"tool_calls": [{"index": 0, **call.as_dict()}]}, None)
        end = self._part(number, {}, FinishReason.STOP)
        end["choices"] = [{"index": number, "delta": {}, "finish_reason": "tool_calls", "logprobs": None}]
        return [part, end]

    def last(self, stats: Sequence[Stats]) -> dict[str, object]:
        """Return the part with the usage, which has no choice."""
        return self._head(self._kind) | {"choices": [], "usage": usage(stats), "timings": timings(stats)}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.asked.chat else "text_completion"

    def _part(
        self, number: int, delta: Mapping[str, object], reason: FinishReason | None, *, text: str = ""
    ) -> dict[str, object]:
        body: dict[str, object] = {"index": number, "finish_reason": finish_name(reason), "logprobs": None}
        body |= {"delta": delta} if self.asked.chat else {"text": text}
        return self._head(self._kind) | {"choices": [body]}

    def _head(self, kind: str) -> dict[str, object]:
        prefix = "chatcmpl" if self.asked.chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def usage(answers: Sequence[Stats]) -> dict[str, object]:
    """Return the tokens of all answers to a request."""
    prompt, written = answers[0].prompt_tokens, sum(stats.tokens for stats in answers)
    accepted, proposed = sum(stats.accepted for stats in answers), sum(stats.proposed for stats in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": answers[0].cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


def timings(answers: Sequence[Stats]) -> dict[str, object]:
    """Return llama.cpp's figures of the first answer."""
    stats = answers[0]
    seconds = stats.time.total
    return {
        "prompt_n": stats.prompt_tokens - stats.cached_tokens,
        "cache_n": stats.cached_tokens,
        "prompt_ms": round(1000 * stats.prefill_seconds, 3),
        "predicted_n": stats.tokens,
        "predicted_ms": round(1000 * seconds, 3),
        "predicted_per_second": round(stats.tokens_per_second, 3),
        "draft_n": stats.proposed,
        "draft_n_accepted": stats.accepted,
    }
