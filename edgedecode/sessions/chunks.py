"""Turn a reply's tokens into chunks of text and, at the end, a completion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

from edgedecode.decoding.drafts import TARGET
from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Verdict
from edgedecode.errors import CapabilityError
from edgedecode.options import SessionOptions
from edgedecode.text.token_text import Detokenizer
from edgedecode.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # few answers are asked for either
    from edgedecode.sampling.log_probabilities import TokenLogprob
    from edgedecode.text.stop_strings import StopStrings

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
class WentAlone:
    """The target's server did not answer; the tokens from here on are the device's model's."""

    reason: str

    @property
    def notice(self) -> str:
        """The message for the user."""
        return f"{self.reason}: the device's model goes on alone"


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
    event: TurnsDropped | WentAlone | None = None
    """Something else that happened; a chunk with an event has no text."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """The log probability of each of the tokens; empty unless they were asked for."""
    number: int = 0
    """Of the answer that it belongs to, where there are several (`Session.samples`)."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()
    """The log probability of each of the tokens; empty unless they were asked for."""


def completion_of(chunks: Iterable[Chunk], stats: Stats) -> Completion:
    """Collect the chunks of an answer into a completion."""
    pieces = list(chunks)
    reason = pieces[-1].finish_reason if pieces else None
    return Completion(
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        finish_reason=reason or FinishReason.CANCELLED,
        stats=stats,
        logprobs=tuple(logprob for piece in pieces for logprob in piece.logprobs),
    )


@dataclass(slots=True)
class Reply:
    """The text of a running generation: tokens in, complete characters out, up to a stop string.

    top_logprobs: the number of likeliest tokens to report with each token's log probability; None: none is computed.
    """

    detokenizer: Detokenizer
    stops: StopStrings | None
    top_logprobs: int | None = None
    text: str = ""

    @classmethod
    def begin(
        cls,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str],
        top_logprobs: int | None,
        options: SessionOptions,
        marks: Collection[str] = (),
    ) -> Reply:
        """Return an empty reply. marks: special tokens that are text, those around a thought.

        Raises InputError, and CapabilityError if some tokens are not verified.
        """
        if top_logprobs is not None:
            from edgedecode.sampling.log_probabilities import check_top_logprobs

            check_top_logprobs(top_logprobs)
            if options.details.switch is not None:
                raise CapabilityError(
                    "log probabilities are the target's, and with entropy switching the draft model writes tokens that "
                    "the target does not process: leave out switching"
                )
        detokenizer = tokenizer.detokenizer(keep=marks)
        if not stop and not isinstance(stop, str):
            return cls(detokenizer, None, top_logprobs)
        from edgedecode.text.stop_strings import StopStrings

        return cls(detokenizer, StopStrings(stop), top_logprobs)

    @property
    def matched(self) -> str:
        """The stop string that ended the text; empty: none."""
        return "" if self.stops is None else self.stops.matched or ""

    def said(self, verdict: Verdict, tokens: list[int], stats: Stats) -> list[Chunk]:
        """Return a round's `chunks`; drop the tokens after a stop string, with which `tokens` end, and count it all."""
        started = perf_counter()
        chunks = self.chunks(verdict)
        surplus = len(verdict.tokens) - sum(len(chunk.tokens) for chunk in chunks)
        del tokens[len(tokens) - surplus :]
        stats.discard(verdict, surplus)
        if stats.rounds > 1:
            stats.spend_host(perf_counter() - started)
        return chunks

    def chunks(self, verdict: Verdict) -> list[Chunk]:
        """Add a round's tokens up to the one that completes a stop string; valid until the target's next forward."""
        chunks = [self.say(run, source) for run, source in _runs_of(verdict) if not self.matched]
        if self.top_logprobs is None:
            return chunks
        logprobs = iter(verdict.logprobs(self.top_logprobs))
        return [replace(chunk, logprobs=tuple(islice(logprobs, len(chunk.tokens)))) for chunk in chunks]

    def say(self, run: tuple[int, ...], source: str) -> Chunk:
        """Add the tokens of a run up to the one that completes a stop string, as decoding without drafts would."""
        text, taken = "", 0
        while taken < len(run) and not self.matched:
            text += self._shown(self.detokenizer.push(run[taken : taken + 1]))
            taken += 1
        self.text += text
        return Chunk(text, run[:taken], source)

    def rest(self) -> str:
        """Return the text held back, and hold nothing any more."""
        text = self._shown(self.detokenizer.flush()) + (self.stops.flush() if self.stops is not None else "")
        self.text += text
        return text

    def _shown(self, text: str) -> str:
        return text if self.stops is None else self.stops.push(text)


def _runs_of(verdict: Verdict) -> Iterator[tuple[tuple[int, ...], str]]:
    """Split a round's tokens into the accepted drafts and the target's own tokens."""
    if verdict.accepted:
        yield verdict.tokens[: verdict.accepted], verdict.draft.source
    if len(verdict.tokens) > verdict.accepted:
        yield verdict.tokens[verdict.accepted :], TARGET_SOURCE
