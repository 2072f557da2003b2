"""How an answer is made, round by round, for clients that show it (`return_rounds`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

from edgedecode import Chunk
from edgedecode.decoding.drafts import WRITER
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.decoding.stats import Stats

_PERIOD = 0.05
"""Seconds between two sets of statistics of one answer: they are read by people, and cost more than a token."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of an answer. report: how it was made, JSON-serialisable; None: none was asked for.

    thought: what the model thinks, which is not in the chunk's text.
    """

    chunk: Chunk
    report: Mapping[str, object] | None = None
    thought: str = ""


class RoundLog:
    """Reports each chunk of one answer. It runs in the answer's thread, so that counts and chunk belong together."""

    def __init__(self, stats: Stats, *, clock: Callable[[], float] = perf_counter) -> None:
        self._stats, self._clock = stats, clock
        self._rounds = self._proposed = self._accepted = self._signals = 0
        self._drafted: dict[str, int] = {}
        """Rounds by drafter, and rounds without a draft by reason, as of the last chunk."""
        self._plain: dict[str, int] = {}
        self._shown = -_PERIOD

    def report(self, chunk: Chunk) -> dict[str, object]:
        """Return the chunk's source and tokens, its round if it begins one, and the statistics now and then."""
        found: dict[str, object] = {
            "source": chunk.source,
            "tokens": len(chunk.tokens),
            "verified": chunk.source != WRITER or not self._stats.unverified_tokens,
        }
        if self._stats.rounds > self._rounds:
            found["round"] = self._round()
        if len(self._stats.signals) > self._signals:
            found["uncertainty"] = [round(value, 5) for value in self._stats.signals[self._signals :]]
            self._signals = len(self._stats.signals)
        if chunk.event is not None:
            found["notice"] = chunk.event.notice
        now = self._clock()
        if chunk.finish_reason is not None or now >= self._shown + _PERIOD:
            self._shown = now
            found["stats"] = _shown(self._stats)
        return found

    def _round(self) -> dict[str, object]:
        """Return what the latest round drafted, and why it drafted nothing if it did not."""
        stats = self._stats
        drafted = {name: count.rounds for name, count in stats.drafters.items()}
        drafter = next((name for name, rounds in drafted.items() if rounds > self._drafted.get(name, 0)), NO_DRAFTER)
        reason = next((why for why, rounds in stats.plain_rounds.items() if rounds > self._plain.get(why, 0)), "")
        found: dict[str, object] = {
            "drafter": drafter,
            "proposed": stats.proposed - self._proposed,
            "accepted": stats.accepted - self._accepted,
            "reason": reason,
        }
        self._drafted, self._plain = drafted, dict(stats.plain_rounds)
        self._rounds, self._proposed, self._accepted = stats.rounds, stats.proposed, stats.accepted
        return found


def _shown(stats: Stats) -> dict[str, object]:
    every = stats.as_dict()
    names = (
        *("mode", "seed", "rounds", "proposed", "accepted", "verified_tokens", "unverified_tokens", "target_share"),
        *("switches", "handed_over_at", "acceptance_length", "drafters", "plain_rounds", "prompt_tokens"),
        *("cached_tokens", "time_to_first_token", "tokens_per_second", "plain_tokens_per_second", "time_seconds"),
    )
    return {name: every[name] for name in names}
