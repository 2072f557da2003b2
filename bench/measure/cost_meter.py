"""Measures the cost of forward passes: the target's curve c(n), and the draft model's step d.

A pass changes the caches and the threads' state for the next one, so the order of passes matters. A target pass is
timed after another target pass (plain decoding, lookups) and after draft steps (the draft model). A draft step is timed
after a target pass (the first of a draft) and after another step (the others).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from edgedecode import Pair
from edgedecode.engines.pass_timing import filled_state, timed_pass

CONTEXT = 256
WIDEST = 16
_WARM_UP = 3
_LEAD_IN = 8
"""Untimed rows at a width before it is timed. After a wide pass narrow ones stay slow for some passes (one token of a
10M pack by 19 to 27% at once, 10 to 15% after two; a busy machine), and plain decoding has no wide ones."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Median seconds of a draft step after a target pass and after another step, and of target passes after such
    steps, by width."""

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
    drafts: dict[str, DraftCosts]
    """Of the draft model, as "model"; empty without one."""

    @property
    def step_seconds(self) -> float:
        """Seconds of a plain decoding step, a target pass over one token: the unit of c and d."""
        return self.target_seconds[1]

    def c(self, width: int, drafter: str = "none") -> float:
        """Cost of a pass over a measured number of tokens; drafter: after steps of the draft model."""
        draft = self.drafts.get(drafter)
        curve = self.target_seconds if draft is None or width == 1 else draft.target_seconds
        return curve[width] / self.step_seconds

    def d(self, drafter: str) -> float:
        """Cost of a draft step after a target pass."""
        return self.drafts[drafter].first_seconds / self.step_seconds


class CostMeter:
    """Times passes over 1 to `widest` tokens after the same context; each sample times every width once.

    Samples are taken between the runs that they belong to, so that both see the same load on the machine. `close`
    releases the KV caches.
    """

    def __init__(self, pair: Pair, *, tokens: Sequence[int], widest: int = WIDEST) -> None:
        pair.manifest.check_same_tokens("bench")
        self._target, self._draft = pair.target, pair.draft
        self._context = min(CONTEXT, self._target.card.context - widest)
        text = (list(tokens) * (1 + (self._context + widest) // len(tokens)))[: self._context + widest]
        before, self._next = text[: self._context], text[self._context :]
        self._state = filled_state(self._target, before, room=widest, rows=widest)
        self._draft_state = None if self._draft is None else filled_state(self._draft, before, room=1, rows=1)
        self._samples: list[_Sample] = []
        self.sample(_WARM_UP)
        self._samples.clear()

    def sample(self, count: int = 1) -> None:
        """Take `count` samples, each beginning with another width."""
        for _ in range(count):
            start = len(self._samples) % len(self._next)
            widths = range(1, len(self._next) + 1)
            self._samples.append(_Sample())
            for width in (*widths[start:], *widths[:start]):
                self._time_round(width, self._samples[-1])

    def costs(self) -> Costs:
        """Return the medians of all samples."""
        samples = self._samples
        drafts = {}
        if self._draft is not None:
            drafts["model"] = DraftCosts(
                median(seconds for sample in samples for seconds in sample.first),
                median(seconds for sample in samples for seconds in sample.next),
                _medians([sample.after_draft for sample in samples]),
            )
        return Costs(self._context, len(samples), _medians([sample.target for sample in samples]), drafts)

    def close(self) -> None:
        for state in (self._state, self._draft_state):
            if state is not None:
                state.close()

    def _time_round(self, width: int, sample: "_Sample") -> None:
        """Run the lead-in, time a target pass, then two draft steps and a target pass."""
        tokens = self._next[:width]
        for _ in range(max(1, _LEAD_IN // width)):
            timed_pass(self._target, self._state, tokens)
        sample.target[width] = timed_pass(self._target, self._state, tokens)
        if self._draft is not None and self._draft_state is not None:
            sample.first.append(timed_pass(self._draft, self._draft_state, tokens[:1]))
            sample.next.append(timed_pass(self._draft, self._draft_state, tokens[:1]))
            sample.after_draft[width] = timed_pass(self._target, self._state, tokens)


@dataclass(slots=True)
class _Sample:
    """Seconds of target passes by width, and of draft steps, in the order of passes that `Costs` states."""

    target: dict[int, float] = field(default_factory=dict)
    first: list[float] = field(default_factory=list)
    next: list[float] = field(default_factory=list)
    after_draft: dict[int, float] = field(default_factory=dict)


def _medians(samples: Sequence[dict[int, float]]) -> dict[int, float]:
    return {width: median(sample[width] for sample in samples) for width in sorted(samples[0])}
