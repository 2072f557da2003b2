"""Counts and times of one generation. Verified and unverified tokens are counted separately."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from statistics import median
from typing import Literal

from .drafts import TARGET, WRITER
from .verify import Outcome, Verdict

LEAST_MEASURED = 5
"""Plain rounds, and drafted ones, that an answer needs for a measured speed-up: a single interrupted round, or the
first ones with cold caches, must not decide the median."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """An end-of-sequence token or a stop string."""
    LENGTH = "length"
    """`max_tokens` were generated, or the context is full."""
    CANCELLED = "cancelled"
    """The caller closed the stream."""


@dataclass(slots=True)
class TimeSplit:
    """Seconds spent on drafting, target passes, sampling with verification, and the rest of the loop."""

    draft: float = 0.0
    verify: float = 0.0
    sample: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.sample + self.host


class Stopwatch:
    """Times the steps of a round, each from the end of the one before. clock: seconds."""

    __slots__ = ("_clock", "_last", "round")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.round = clock, TimeSplit()
        self._last = clock()

    def start(self) -> None:
        """Begin another round."""
        self.round.draft = self.round.verify = self.round.sample = self.round.host = 0.0
        self._last = self._clock()

    def lap(self, step: Literal["draft", "verify", "sample", "host"]) -> None:
        """Add the time since the last lap to this step of the round."""
        now = self._clock()
        setattr(self.round, step, getattr(self.round, step) + now - self._last)
        self._last = now


@dataclass(slots=True)
class DrafterCount:
    """Counts of one drafter: rounds with its drafts, tokens proposed, tokens accepted."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    cut_short: int = 0
    """Rounds that ended with a token outside its trimmed vocabulary."""


@dataclass(slots=True)
class Stats:
    """Counts of one generation. accepted ≤ proposed, and corrections + bonuses + ended = rounds, always.

    `time` covers the rounds after prefill; `prefill_seconds` covers the prompt and the first token.
    """

    mode: str = "plain"
    """How tokens were proposed: plain, or the drafter's name."""
    seed: int | None = None
    """The sampling seed: a new session with this seed and the same messages gives this answer first."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were already in the KV cache."""
    alone_tokens: int = 0
    """Tokens of the device's model, since the target's server did not answer."""
    context_full: bool = False
    """The answer ended because the context was full."""
    stop_string: str = ""
    """The stop string that ended the answer; empty: none did."""
    dropped_turns: int = 0
    """Number of the conversation's oldest turns that were dropped to make room."""
    reread_tokens: int = 0
    """Tokens prefilled again during the answer, because turns were dropped."""
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    corrections: int = 0
    bonuses: int = 0
    ended: int = 0
    verified_tokens: int = 0
    unverified_tokens: int = 0
    """Tokens that the draft model wrote and the target did not verify (entropy switching)."""
    thought_tokens: int = 0
    """Tokens of what the model thought before it answered, where it was set apart (servers)."""
    switches: int = 0
    """Number of switches between the models that write (entropy switching)."""
    signals: list[float] = field(default_factory=list)
    """The draft model's uncertainty before each token that it was asked for; see `handed_over_at`."""
    handed_over_at: float = 0.0
    """Mean uncertainty at which the target takes over from the draft model (entropy switching)."""
    time_to_first_token: float = 0.0
    prefill_seconds: float = 0.0
    time: TimeSplit = field(default_factory=TimeSplit)
    planned_nbytes: int = 0
    peak_nbytes: int | None = None
    survival: list[int] = field(default_factory=list)
    """survival[j]: rounds in which at least j + 1 drafted tokens were accepted."""
    reached: list[int] = field(default_factory=list)
    """reached[j]: rounds whose draft was at least j + 1 tokens long."""
    drafters: dict[str, DrafterCount] = field(default_factory=dict)
    plain_rounds: dict[str, int] = field(default_factory=dict)
    """Rounds without a draft although there are drafters, by reason; the prompt's own pass is not counted."""
    _first_tokens: int = field(default=0, repr=False)
    """Tokens that came together first, in `prefill_seconds`."""
    _writer: str = field(default="", repr=False)
    """Source of the last tokens: `TARGET` or the draft's source."""
    _plain_times: list[float] = field(default_factory=list, repr=False)
    """Seconds of each round whose pass had one row, without asking drafters."""
    _was_plain: bool = field(default=False, repr=False)
    """Whether the last round was one of these."""

    def prefilled(self, seconds: float) -> None:
        """Add the time until the first tokens."""
        self.prefill_seconds += seconds
        self.time_to_first_token = self.time_to_first_token or seconds
        self._was_plain = False

    def spend(self, time: TimeSplit, *, plain: bool = False) -> None:
        """Add a later round's time. plain: its pass had one row, as in plain decoding."""
        self.time.draft += time.draft
        self.time.verify += time.verify
        self.time.sample += time.sample
        self._was_plain = plain
        if plain:
            self._plain_times.append(time.verify + time.sample)
        self.spend_host(time.host)

    def spend_host(self, seconds: float) -> None:
        """Add host overhead of the last round."""
        self.time.host += seconds
        if self._was_plain:
            self._plain_times[-1] += seconds

    def discard(self, verdict: Verdict, tokens: int) -> None:
        """Subtract this number of a verdict's last tokens, which are not part of the answer."""
        if verdict.verified:
            self.verified_tokens -= tokens
        else:
            self.unverified_tokens -= tokens

    def count(self, verdict: Verdict, *, why: str = "") -> None:
        """Add one round. why: the reason of its plan."""
        writer = TARGET if verdict.verified else WRITER
        self._first_tokens = self._first_tokens or len(verdict.tokens)
        self.switches += self._writer not in ("", writer)
        self._writer = writer
        if not verdict.verified:
            self.unverified_tokens += len(verdict.tokens)
            return
        if drafted := len(verdict.draft):
            self._count_draft(verdict, drafted, verdict.accepted)
        elif why:
            self.plain_rounds[why] = self.plain_rounds.get(why, 0) + 1
        self.rounds += 1
        self.verified_tokens += len(verdict.tokens)
        self.corrections += verdict.outcome is Outcome.CORRECTION
        self.bonuses += verdict.outcome is Outcome.BONUS
        self.ended += verdict.outcome is Outcome.ENDED

    def _count_draft(self, verdict: Verdict, drafted: int, accepted: int) -> None:
        depth = verdict.draft.depth
        mine = self.drafters.setdefault(verdict.draft.source, DrafterCount())
        mine.rounds += 1
        mine.proposed += drafted
        mine.accepted += accepted
        mine.cut_short += _cut_short(verdict)
        self.proposed += drafted
        self.accepted += accepted
        while len(self.reached) < depth:
            self.reached.append(0)
            self.survival.append(0)
        for index in range(depth):
            self.reached[index] += 1
        for index in range(accepted):
            self.survival[index] += 1

    @property
    def tokens(self) -> int:
        """Number of tokens in the answer."""
        return self.verified_tokens + self.unverified_tokens

    @property
    def target_share(self) -> float:
        """Share of the tokens that the target wrote or verified; 1 without entropy switching."""
        return self.verified_tokens / self.tokens if self.tokens else 1.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per target call, the bonus included."""
        return self.verified_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed after the first token, or the first tokens if several came together."""
        return self._later_tokens / self.time.total if self.time.total else 0.0

    @property
    def plain_tokens_per_second(self) -> float | None:
        """Speed of this answer's own rounds without drafts; None: too few of these, or of those with drafts."""
        drafted = sum(count.rounds for count in self.drafters.values())
        if min(len(self._plain_times), drafted) < LEAST_MEASURED:
            return None
        return 1 / max(median(self._plain_times), 1e-9)

    @property
    def speed_up(self) -> float | None:
        """Speed-up after the first token over this answer's own plain rounds; None: not measured."""
        plain = self.plain_tokens_per_second
        return None if plain is None or not self.tokens_per_second else self.tokens_per_second / plain

    @property
    def _later_tokens(self) -> int:
        return max(0, self.tokens - max(1, self._first_tokens))

    @property
    def prefill_tokens_per_second(self) -> float:
        prefilled = self.prompt_tokens - self.cached_tokens
        return prefilled / self.prefill_seconds if self.prefill_seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """Return every field and rate, JSON-serialisable, times in seconds."""
        fields = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        fields["time_seconds"] = fields.pop("time")
        rates = {
            "target_share": self.target_share,
            "acceptance_length": self.acceptance_length,
            "speed_up": self.speed_up,
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "tokens_per_second": self.tokens_per_second,
            "plain_tokens_per_second": self.plain_tokens_per_second,
        }
        return {name: _rounded(value) for name, value in (fields | rates).items()}

    def to_json(self) -> str:
        return json.dumps(self.as_dict())


def _rounded(value: object) -> object:
    """Round the floats of a JSON value to six digits after the point."""
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def _cut_short(verdict: Verdict) -> bool:
    """Return whether the target's token is outside the drafter's vocabulary."""
    known = verdict.draft.vocabulary
    return known is not None and verdict.outcome is Outcome.CORRECTION and verdict.tokens[-1] not in known
