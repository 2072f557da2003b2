"""What passes cost here: the target's curve c(n) and the draft model's step d, each measured behind what it follows.

A pass leaves the caches, and the engine's threads, to the next one. So a target pass is timed behind another target
pass, as in plain decoding and with lookups, and behind draft steps, as with the draft model; a draft step behind a
target pass, as a draft's first, and behind another step, as its others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from edgedecode.loop import PREFILL_CHUNK
from edgedecode.protocols import LanguageModel, State
from edgedecode.types import RowRequest

from .timed import TimedPair

__all__ = ["CONTEXT", "READ", "WIDEST", "CostMeter", "Costs"]

CONTEXT = 256
WIDEST = 16
READ = 64
"""Tokens the draft model reads at once where its reading is timed."""
_WARM_UP = 3
_LEAD_IN = 8
"""Rows passed, untimed, at a width before it is timed: behind a wide pass narrow ones stay slow for some passes (one
token of a 10M pack by 19 to 27% at once, 10 to 15% after two; a busy machine), and plain decoding has no wide ones."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Median seconds of a target pass by width (all its rows scored), and of one draft step; at `context` tokens."""

    context: int
    samples: int
    target_seconds: dict[int, float]
    """Behind another target pass."""
    draft_seconds: float | None
    """A draft step behind a target pass."""
    next_draft_seconds: float | None = None
    """A draft step behind another."""
    drafted_seconds: dict[int, float] | None = None
    """Target passes behind draft steps."""
    read_seconds: float | None = None
    """What the draft model takes to read a token of many; None where that was not measured."""

    @property
    def step_seconds(self) -> float:
        """One target pass over one token, in plain decoding: the unit of c, d and o."""
        return self.target_seconds[1]

    def c(self, width: int, drafter: str = "none") -> float:
        """Cost of a pass over `width` tokens; between and beyond the measured widths, linear."""
        behind_draft = drafter == "model" and width > 1 and self.drafted_seconds is not None
        curve = self.drafted_seconds or {} if behind_draft else self.target_seconds
        known = sorted(curve)
        above = next((n for n in known if n >= width), known[-1])
        below = max((n for n in known if n < above), default=above)
        seconds = curve[above]
        if above != width and above != below:
            slope = (curve[above] - curve[below]) / (above - below)
            seconds += slope * (width - above)
        return seconds / self.step_seconds

    def d(self, drafter: str, length: int = 1) -> float:
        """Cost of a drafted token in a draft of `length`; a lookup has none in the engine, its work is host work."""
        if drafter != "model" or self.draft_seconds is None:
            return 0.0
        following = self.draft_seconds if self.next_draft_seconds is None else self.next_draft_seconds
        return (self.draft_seconds + (length - 1) * following) / length / self.step_seconds


class CostMeter:
    """Times passes over 1 to `widest` tokens behind the same context, a sample of each at a time.

    Samples are taken between the runs they are to explain, so that both see the same machine. Close it to give its
    states back.

    context: positions before the passes. reading: time the draft model's reading too.
    """

    def __init__(
        self,
        timed: TimedPair,
        *,
        tokens: Sequence[int],
        widest: int = WIDEST,
        context: int = CONTEXT,
        reading: bool = False,
    ) -> None:
        self._target, self._draft = timed.pair.target, timed.draft
        room = max(widest, READ) if reading else widest
        self._context = min(context, self._target.card.context - room)
        text = (list(tokens) * (1 + (self._context + room) // len(tokens)))[: self._context + room]
        self._next = text[self._context : self._context + widest]
        self._read = text[self._context : self._context + READ] if reading else []
        self._state = _filled(self._target, text[: self._context], room=widest)
        self._draft_state = None
        if self._draft is not None:
            self._draft_state = _filled(self._draft, text[: self._context], room=READ if reading else 1)
        self._samples: list[_Sample] = []
        self.sample(_WARM_UP)
        self._samples.clear()

    @property
    def samples(self) -> int:
        """Samples taken so far: `costs` can start from here later."""
        return len(self._samples)

    def sample(self, count: int = 1) -> None:
        """Time every width once, `count` times, each time beginning with another width."""
        for _ in range(count):
            start = self.samples % len(self._next)
            widths = range(1, len(self._next) + 1)
            sample = _Sample()
            for width in (*widths[start:], *widths[:start]):
                self._time_round(width, sample)
            if self._read and self._draft is not None and self._draft_state is not None:
                seconds = _pass(self._draft, self._draft_state, self._read, rows="last")
                sample.read.append(seconds / len(self._read))
            self._samples.append(sample)

    def costs(self, *, since: int = 0) -> Costs:
        """Return the medians of the samples from number `since` on."""
        samples = self._samples[since:]
        drafts = self._draft is not None
        return Costs(
            context=self._context,
            samples=len(samples),
            target_seconds=_medians([sample.target for sample in samples]),
            draft_seconds=median(seconds for sample in samples for seconds in sample.draft) if drafts else None,
            next_draft_seconds=median(s for sample in samples for s in sample.next_draft) if drafts else None,
            drafted_seconds=_medians([sample.drafted for sample in samples]) if drafts else None,
            read_seconds=median(s for sample in samples for s in sample.read) if drafts and self._read else None,
        )

    def close(self) -> None:
        self._state.close()
        if self._draft_state is not None:
            self._draft_state.close()

    def _time_round(self, width: int, sample: _Sample) -> None:
        """Settle, time a target pass, then a round with the draft model: two draft steps and a target pass."""
        tokens = self._next[:width]
        for _ in range(max(1, _LEAD_IN // width)):
            _pass(self._target, self._state, tokens)
        sample.target[width] = _pass(self._target, self._state, tokens)
        if self._draft is not None and self._draft_state is not None:
            sample.draft.append(_pass(self._draft, self._draft_state, tokens[:1]))
            sample.next_draft.append(_pass(self._draft, self._draft_state, tokens[:1]))
            sample.drafted[width] = _pass(self._target, self._state, tokens)


@dataclass(slots=True)
class _Sample:
    """Seconds: of target passes by width, and of draft steps, each behind what `Costs` says."""

    target: dict[int, float] = field(default_factory=dict)
    drafted: dict[int, float] = field(default_factory=dict)
    draft: list[float] = field(default_factory=list)
    next_draft: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    """Seconds a token."""


def _medians(samples: Sequence[dict[int, float]]) -> dict[int, float]:
    return {width: median(sample[width] for sample in samples) for width in sorted(samples[0])}


def _filled(model: LanguageModel, tokens: Sequence[int], *, room: int) -> State:
    state = model.new_state(len(tokens) + room, rows=room)
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        model.forward(chunk, state, rows="none")
        state.keep(range(len(chunk)))
    return state


def _pass(model: LanguageModel, state: State, tokens: Sequence[int], *, rows: RowRequest = "all") -> float:
    length = state.length
    started = perf_counter()
    model.forward(tokens, state, rows=rows)
    seconds = perf_counter() - started
    state.crop(length)
    return seconds
