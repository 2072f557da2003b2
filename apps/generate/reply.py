"""An answer as it is printed: in pieces as it arrives, or as JSON."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgedecode import Chunk, FinishReason, Stats, TokenLogprob

if TYPE_CHECKING:
    from ..colour import Paint

VOTE, LIKELIEST = "vote", "mean-logprob"
"""Ways to choose one of several answers."""


@dataclass(slots=True)
class Reply:
    """The answer so far. With `stream`, each chunk is written and flushed as it arrives."""

    paint: "Paint | None"
    stream: bool
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.CANCELLED
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Append a chunk, and write it if streaming. Raises BrokenPipeError when the reader is gone."""
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.logprobs += chunk.logprobs
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if self.stream and chunk.text:
            sys.stdout.write(chunk.text if self.paint is None else self.paint.paint(chunk.text, chunk.source))
            sys.stdout.flush()

    def end(self) -> None:
        """End the last line of streamed text."""
        if self.stream and not self.text.endswith("\n"):
            print(flush=True)

    def value(self, stats: Stats) -> dict[str, object]:
        """Return the answer for JSON."""
        value = {"text": self.text, "tokens": self.tokens, "finish_reason": self.finish_reason.value}
        return value | {"seed": stats.seed, "stats": stats.as_dict()}
