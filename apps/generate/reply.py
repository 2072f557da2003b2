"""One answer on its way out: streamed as text, or collected and written as one JSON line."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from edgedecode import Chunk, FinishReason, Stats

from ..colour import Paint

__all__ = ["Reply"]


@dataclass(slots=True)
class Reply:
    """What was said so far. With `stream` every chunk is written and flushed at once."""

    paint: Paint
    stream: bool
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.CANCELLED

    def add(self, chunk: Chunk) -> None:
        """Take a chunk, and write it. Raises BrokenPipeError when nobody reads."""
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if self.stream and chunk.text:
            sys.stdout.write(self.paint.paint(chunk.text, chunk.source))
            sys.stdout.flush()

    def end(self) -> None:
        """End the last line of streamed text."""
        if self.stream and not self.text.endswith("\n"):
            print(flush=True)

    def to_json(self, stats: Stats, *, seed: int) -> str:
        """Return the line that --json ends with."""
        return json.dumps(
            {
                "text": self.text,
                "tokens": self.tokens,
                "finish_reason": self.finish_reason.value,
                "seed": seed,
                "stats": stats.as_dict(),
            }
        )
