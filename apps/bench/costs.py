"""What passes cost here: the target's curve c(n) and the draft model's step d, measured interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from edgedecode.protocols import LanguageModel, State

from .timed import TimedPair

__all__ = ["Costs", "measure_costs"]

CONTEXT = 256
WIDEST = 16
REPETITIONS = 15
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """Median seconds of a target pass by width (all its rows scored), and of one draft step; at `context` tokens."""

    context: int
    repetitions: int
    target_seconds: dict[int, float]
    draft_seconds: float | None

    @property
    def step_seconds(self) -> float:
        """One target pass over one token: the unit of c, d and o."""
        return self.target_seconds[1]

    def c(self, width: int) -> float:
        """Cost of a pass over `width` tokens; between and beyond the measured widths, linear."""
        known = sorted(self.target_seconds)
        above = next((n for n in known if n >= width), known[-1])
        below = max((n for n in known if n < above), default=above)
        seconds = self.target_seconds[above]
        if above != width and above != below:
            slope = (self.target_seconds[above] - self.target_seconds[below]) / (above - below)
            seconds += slope * (width - above)
        return seconds / self.step_seconds

    def d(self, drafter: str) -> float:
        """Cost of one drafted token in the engine; a lookup has none, its work is host work."""
        return (self.draft_seconds or 0.0) / self.step_seconds if drafter == "model" else 0.0


def measure_costs(timed: TimedPair, *, tokens: Sequence[int], widest: int = WIDEST) -> Costs:
    """Time passes over 1 to `widest` tokens after `tokens` (repeated to fill the context), in turns to share drift."""
    target = timed.pair.target
    context = min(CONTEXT, target.card.context - widest)
    text = (list(tokens) * (1 + (context + widest) // len(tokens)))[: context + widest]
    state = _filled(target, text[:context], room=widest)
    draft_state = None if timed.draft is None else _filled(timed.draft, text[:context], room=1)
    seconds: dict[int, list[float]] = {width: [] for width in range(1, widest + 1)}
    draft_seconds: list[float] = []
    try:
        for repetition in range(_WARM_UP + REPETITIONS):
            for width in _rotated(range(1, widest + 1), repetition):
                seconds[width].append(_pass(target, state, text[context : context + width]))
            if timed.draft is not None and draft_state is not None:
                draft_seconds.append(_pass(timed.draft, draft_state, text[context : context + 1]))
    finally:
        state.close()
        if draft_state is not None:
            draft_state.close()
    return Costs(
        context=context,
        repetitions=REPETITIONS,
        target_seconds={width: median(times[_WARM_UP:]) for width, times in seconds.items()},
        draft_seconds=median(draft_seconds[_WARM_UP:]) if draft_seconds else None,
    )


def _filled(model: LanguageModel, tokens: Sequence[int], *, room: int) -> State:
    state = model.new_state(len(tokens) + room)
    model.forward(tokens, state, rows="none")
    state.keep(range(len(tokens)))
    return state


def _pass(model: LanguageModel, state: State, tokens: Sequence[int]) -> float:
    length = state.length
    started = perf_counter()
    model.forward(tokens, state, rows="all")
    seconds = perf_counter() - started
    state.crop(length)
    return seconds


def _rotated(items: Sequence[int], by: int) -> list[int]:
    start = by % len(items)
    return [*items[start:], *items[:start]]
