"""Measures the cost of forward passes: the target's curve c(n), and the draft step d of each head.

A pass changes the caches and the threads' state for the next one, so the order of passes matters. A target pass is
timed after another target pass (plain decoding, lookups) and after draft steps (the draft model). A draft step is timed
after a target pass (the first of a draft) and after another step (the others).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from edgedecode.engines.pass_timing import filled_state, timed_pass

from .timed import TimedHead, TimedModel, TimedPair

CONTEXT = 256
WIDEST = 16
READ = 64
"""Tokens in the timed prefill pass of the draft model."""
_WARM_UP = 3
_LEAD_IN = 8
"""Untimed rows at a width before it is timed. After a wide pass narrow ones stay slow for some passes (one token of a
10M pack by 19 to 27% at once, 10 to 15% after two; a busy machine), and plain decoding has no wide ones."""


_HEADS = {"model": "model", "tree": "model", "trim": "trim"}
"""Drafters that run the draft model, and the head that each uses. A level of a tree counts as one step, although wide
levels cost somewhat more."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Median seconds of a head's draft step after a target pass and after another step, and of target passes after
    such steps, by width."""

    first_seconds: float
    next_seconds: float
    target_seconds: dict[int, float]


@dataclass(frozen=True, slots=True)
class Costs:
    """Median seconds of a target pass by width (all rows scored) and of draft steps, at `context` tokens."""

    context: int
    samples: int
    target_seconds: dict[int, float]
    """After another target pass."""
    drafts: dict[str, DraftCosts] = field(default_factory=dict)
    """By head; "model" is the full head."""
    read_seconds: float | None = None
    """Seconds per token of the draft model's prefill; None if not measured."""

    @property
    def step_seconds(self) -> float:
        """Seconds of a plain decoding step, a target pass over one token: the unit of c, d and o."""
        return self.target_seconds[1]

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters whose draft steps were measured."""
        return tuple(drafter for drafter, head in _HEADS.items() if head in self.drafts)

    def c(self, width: float, drafter: str = "none") -> float:
        """Cost of a pass over `width` tokens, which may be a mean; linear between and beyond the measured widths."""
        draft = self._draft(drafter)
        curve = self.target_seconds if draft is None or width <= 1 else draft.target_seconds
        known = sorted(curve)
        above = next((n for n in known if n >= width), known[-1])
        below = max((n for n in known if n < above), default=above)
        seconds = curve[above]
        if above != width and above != below:
            slope = (curve[above] - curve[below]) / (above - below)
            seconds += slope * (width - above)
        return seconds / self.step_seconds

    def d(self, drafter: str, length: int = 1) -> float:
        """Cost of a drafted token, or of a tree's level, in a draft of `length`; 0 for a lookup, without a model."""
        draft = self._draft(drafter)
        if draft is None:
            return 0.0
        return (draft.first_seconds + (length - 1) * draft.next_seconds) / length / self.step_seconds

    def _draft(self, drafter: str) -> DraftCosts | None:
        return self.drafts.get(_HEADS.get(drafter, ""))


class CostMeter:
    """Times passes over 1 to `widest` tokens after the same context; each sample times every width once.

    Samples are taken between the runs that they are to explain, so that both see the same load on the machine. `close`
    releases the KV caches.

    context: positions before the passes. reading: time the draft model's prefill too.
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
        self._target = timed.pair.target
        room = max(widest, READ) if reading else widest
        self._context = min(context, self._target.card.context - room)
        text = (list(tokens) * (1 + (self._context + room) // len(tokens)))[: self._context + room]
        self._next = text[self._context : self._context + widest]
        self._read = text[self._context : self._context + READ] if reading else []
        before = text[: self._context]
        self._state = filled_state(self._target, before, room=widest, rows=widest)
        rows = READ if reading else 1
        self._draft_states = [filled_state(model, before, room=rows, rows=rows) for model in timed.drafts]
        opened = list(zip(timed.drafts, self._draft_states, strict=True))
        self._reader = next(((model, state) for model, state in opened if model is timed.draft), None)
        self._heads = {name: (head, state) for model, state in opened for name, head in _heads(model)}
        self._samples: list[_Sample] = []
        self.sample(_WARM_UP)
        self._samples.clear()

    @property
    def samples(self) -> int:
        """Number of samples so far, which `costs` takes as `since`."""
        return len(self._samples)

    def sample(self, count: int = 1) -> None:
        """Take `count` samples, each beginning with another width."""
        for _ in range(count):
            start = self.samples % len(self._next)
            widths = range(1, len(self._next) + 1)
            sample = _Sample()
            for width in (*widths[start:], *widths[:start]):
                self._time_round(width, sample)
            if self._read and self._reader is not None:
                model, state = self._reader
                sample.read.append(timed_pass(model, state, self._read, rows="last") / len(self._read))
            self._samples.append(sample)

    def costs(self, *, since: int = 0) -> Costs:
        """Return the medians of the samples from index `since` on."""
        samples = self._samples[since:]
        reads = [seconds for sample in samples for seconds in sample.read]
        return Costs(
            context=self._context,
            samples=len(samples),
            target_seconds=_medians([sample.target for sample in samples]),
            drafts={name: _draft_costs([sample.drafts[name] for sample in samples]) for name in self._heads},
            read_seconds=median(reads) if reads else None,
        )

    def close(self) -> None:
        for state in (self._state, *self._draft_states):
            state.close()

    def _time_round(self, width: int, sample: _Sample) -> None:
        """Run the lead-in, time a target pass, then for each head two draft steps and a target pass."""
        tokens = self._next[:width]
        for _ in range(max(1, _LEAD_IN // width)):
            timed_pass(self._target, self._state, tokens)
        sample.target[width] = timed_pass(self._target, self._state, tokens)
        for name, (head, state) in self._heads.items():
            draft = sample.drafts.setdefault(name, _DraftSample())
            draft.first.append(timed_pass(head, state, tokens[:1]))
            draft.next.append(timed_pass(head, state, tokens[:1]))
            draft.target[width] = timed_pass(self._target, self._state, tokens)


@dataclass(slots=True)
class _DraftSample:
    """Seconds of one head's steps, and of the target passes after them, by width."""

    first: list[float] = field(default_factory=list)
    next: list[float] = field(default_factory=list)
    target: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Sample:
    """Seconds of target passes by width, and of draft steps by head, in the order of passes that `Costs` states."""

    target: dict[int, float] = field(default_factory=dict)
    drafts: dict[str, _DraftSample] = field(default_factory=dict)
    read: list[float] = field(default_factory=list)
    """Seconds per token of prefill."""


def _heads(model: TimedModel) -> list[tuple[str, TimedModel | TimedHead]]:
    """Return the heads that drafters run, by name."""
    own = ("model" if model.card.token_ids is None else "trim", model)
    return [own] if model.trimmed is None else [own, ("trim", model.trimmed)]


def _draft_costs(samples: Sequence[_DraftSample]) -> DraftCosts:
    return DraftCosts(
        first_seconds=median(seconds for sample in samples for seconds in sample.first),
        next_seconds=median(seconds for sample in samples for seconds in sample.next),
        target_seconds=_medians([sample.target for sample in samples]),
    )


def _medians(samples: Sequence[dict[int, float]]) -> dict[int, float]:
    return {width: median(sample[width] for sample in samples) for width in sorted(samples[0])}
