"""Turn a reply's tokens into chunks of text and, at the end, a completion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edgedecode.decoding.drafts import TARGET
from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Verdict
from edgedecode.text.detokenizer import Detokenizer
from edgedecode.text.stop_strings import StopStrings

__all__ = ["TARGET_SOURCE", "Chunk", "Completion", "Reply", "TurnsDropped", "completion_of", "runs_of"]

TARGET_SOURCE = TARGET


@dataclass(frozen=True, slots=True)
class TurnsDropped:
    """The oldest turns were dropped to make room, before an answer or in the middle of it."""

    turns: int
    tokens: int
    """Tokens left in the conversation, including the beginning of an answer."""

    @property
    def notice(self) -> str:
        """The message for the user."""
        turns = "the oldest turn was" if self.turns == 1 else f"the {self.turns} oldest turns were"
        return f"{turns} dropped: the conversation no longer fits the context"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a reply: complete characters, and tokens that all come from one source.

    `text` may be empty while a character or a possible stop string is incomplete. The last chunk has `finish_reason`.
    """

    text: str
    tokens: tuple[int, ...]
    source: str
    """The drafter's name for accepted drafts, "target" for tokens the target added."""
    finish_reason: FinishReason | None = None
    event: TurnsDropped | None = None
    """Something else that happened; a chunk with an event has no text."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats


def completion_of(chunks: Iterable[Chunk], stats: Stats) -> Completion:
    """Collect the chunks of an answer into a completion."""
    pieces = list(chunks)
    reason = pieces[-1].finish_reason if pieces else None
    return Completion(
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        finish_reason=reason or FinishReason.CANCELLED,
        stats=stats,
    )


@dataclass(slots=True)
class Reply:
    """The text of a running generation: tokens in, complete characters out, up to a stop string."""

    detokenizer: Detokenizer
    stops: StopStrings
    text: str = ""

    def say(self, run: tuple[int, ...], source: str) -> Chunk:
        """Add the tokens of a run up to the one that completes a stop string, as decoding without drafts would."""
        text, taken = "", 0
        while taken < len(run) and self.stops.matched is None:
            text += self.stops.push(self.detokenizer.push(run[taken : taken + 1]))
            taken += 1
        self.text += text
        return Chunk(text, run[:taken], source)

    def rest(self) -> str:
        """Return the text held back, and hold nothing any more."""
        text = self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        self.text += text
        return text


def runs_of(verdict: Verdict) -> Iterator[tuple[tuple[int, ...], str]]:
    """Split a round's tokens into the accepted drafts and the target's own tokens."""
    if verdict.accepted:
        yield verdict.tokens[: verdict.accepted], verdict.draft.source
    if len(verdict.tokens) > verdict.accepted:
        yield verdict.tokens[verdict.accepted :], TARGET_SOURCE
