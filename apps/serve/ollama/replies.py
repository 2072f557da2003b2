"""Ollama's replies: one object, or one a line as the answer is written."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter

from msgspec.json import encode

from edgedecode import FinishReason

from ..replies import Answered, Event, Reply, Written, calls_of, text_of, tool_call
from ..requests.asked import Asked
from ..requests.tools import Call

_NANO = 1_000_000_000


@dataclass(slots=True)
class OllamaReply(Reply):
    """The reply of /api/chat, or of /api/generate."""

    asked: Asked
    model: str
    generates: bool = False
    _began: float = field(default_factory=perf_counter)

    media_type = "application/x-ndjson"
    waits = b""

    def whole(self, answers: Sequence[Answered]) -> Event:
        """Return the reply of a request without `stream`, or of one without messages, which needs no answer."""
        if not answers:
            return self._part() | {"done": True, "done_reason": "load" if self.asked.keep_seconds else "unload"}
        (answer,) = answers
        calls = calls_of(self.asked, answer.text)
        text = "" if calls else text_of(self.asked, answer.text)
        return self._part(text, answer.thought, calls) | self._end(answer, calls)

    def thinks(self, number: int, thought: str) -> list[Event]:
        return [self._part("", thought) | {"done": False}]

    def writes(self, number: int, written: Written) -> list[Event]:
        return [self._part(written.text) | {"done": False}]

    def ends(self, number: int, answer: Answered, calls: Sequence[Call]) -> list[Event]:
        made = [self._part("", "", calls) | {"done": False}] if calls else []
        return [*made, self._part() | self._end(answer, calls)]

    def fails(self, message: str) -> list[Event]:
        return [{"error": message}]

    def encoded(self, event: Event) -> bytes:
        return encode(event) + b"\n"

    def _part(self, text: str = "", thought: str = "", calls: Sequence[Call] = ()) -> dict[str, object]:
        thinking = {"thinking": thought} if thought else {}
        said: dict[str, object] = {"response": text, **thinking}
        if not self.generates:
            written = [_called(call) for call in calls if not call.cut]
            made = {"tool_calls": written} if written else {}
            said = {"message": {"role": "assistant", "content": text, **thinking, **made}}
        return {"model": self.model, "created_at": datetime.now(UTC).isoformat(), **said}

    def _end(self, answer: Answered, calls: Sequence[Call]) -> dict[str, object]:
        """Return what the last object has besides: why the answer ended, figures, and what was not followed.

        A client divides by the time of an answer.
        """
        stats = answer.stats
        warnings = [*self.asked.notes]
        warnings += [f"a call of {call.name} was cut off, and is left out" for call in calls if call.cut]
        warnings += [f"a call of {call.name}: {call.fault}" for call in calls if call.fault is not None]
        return {
            "done": True,
            "done_reason": "length" if answer.reason is FinishReason.LENGTH else "stop",
            "total_duration": _nanoseconds(self.asked.load_seconds + perf_counter() - self._began),
            "load_duration": round(self.asked.load_seconds * _NANO),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_seconds),
            "eval_count": stats.tokens,
            "eval_duration": _nanoseconds(stats.time.total),
            **({"warnings": warnings} if warnings else {}),
        }


def _called(call: Call) -> dict[str, object]:
    """Return a call, whose arguments are an object and no text."""
    made = tool_call(call)
    return {"id": made.id, "function": {"name": call.name, "arguments": json.loads(call.arguments)}}


def _nanoseconds(seconds: float) -> int:
    return max(1, round(seconds * _NANO))
