"""A reply on its way out: tokens become chunks of text and, at the end, a completion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Verdict
from edgedecode.text.detokenizer import Detokenizer
from edgedecode.text.stop_strings import StopStrings

__all__ = ["TARGET_SOURCE", "Chunk", "Completion", "Reply", "TurnsDropped", "completion_of", "runs_of"]

TARGET_SOURCE = "target"


@dataclass(frozen=True, slots=True)
class TurnsDropped:
    """The oldest turns were dropped to make room, before an answer or in the middle of it."""

    turns: int
    tokens: int
    """What is left of the conversation, an answer's beginning included."""

    @property
    def notice(self) -> str:
        """What a user is told."""
        turns = "the oldest turn was" if self.turns == 1 else f"the {self.turns} oldest turns were"
        return f"{turns} dropped: the conversation no longer fits the context"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a reply: whole characters, and the tokens behind them, all from one source.

    `text` may be empty while a character or a possible stop string is incomplete. The last chunk has `finish_reason`.
    """

    text: str
    tokens: tuple[int, ...]
    source: str
    """The drafter's name for accepted drafts, "target" for tokens the target added."""
    finish_reason: FinishReason | None = None
    event: TurnsDropped | None = None
    """What happened beside the text; such a chunk has none."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats


def completion_of(chunks: Iterable[Chunk], stats: Stats) -> Completion:
    """Drain the chunks of an answer into a completion."""
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
    """What a running generation has said so far: tokens in, whole characters out, up to a stop string."""

    detokenizer: Detokenizer
    stops: StopStrings
    text: str = ""

    def say(self, run: tuple[int, ...], source: str) -> Chunk:
        """Take the tokens of a run up to the one that completes a stop string, as plain decoding would."""
        text, taken = "", 0
        while taken < len(run) and self.stops.matched is None:
            text += self.stops.push(self.detokenizer.push(run[taken : taken + 1]))
            taken += 1
        self.text += text
        return Chunk(text, run[:taken], source)

    def rest(self) -> str:
        """Return what was held back; after it nothing is."""
        text = self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        self.text += text
        return text


def runs_of(verdict: Verdict) -> Iterator[tuple[tuple[int, ...], str]]:
    """Split a round's tokens into the accepted drafts and what the target added."""
    if verdict.accepted:
        yield verdict.tokens[: verdict.accepted], verdict.draft.source
    if len(verdict.tokens) > verdict.accepted:
        yield verdict.tokens[verdict.accepted :], TARGET_SOURCE
