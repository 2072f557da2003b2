"""What passes cost here: the target's curve c(n) and the draft model's step d, measured interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from edgedecode.protocols import LanguageModel, State

from .timed import TimedPair

__all__ = ["WIDEST", "CostMeter", "Costs"]

CONTEXT = 256
WIDEST = 16
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """Median seconds of a target pass by width (all its rows scored), and of one draft step; at `context` tokens."""

    context: int
    samples: int
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


class CostMeter:
    """Times passes over 1 to `widest` tokens behind the same context, a sample of each at a time.

    Samples are taken between the runs they are to explain, so that both see the same machine. Close it to give its
    states back.
    """

    def __init__(self, timed: TimedPair, *, tokens: Sequence[int], widest: int = WIDEST) -> None:
        self._target, self._draft = timed.pair.target, timed.draft
        self._context = min(CONTEXT, self._target.card.context - widest)
        text = (list(tokens) * (1 + (self._context + widest) // len(tokens)))[: self._context + widest]
        self._next = text[self._context :]
        self._state = _filled(self._target, text[: self._context], room=widest)
        self._draft_state = None if self._draft is None else _filled(self._draft, text[: self._context], room=1)
        self._seconds: dict[int, list[float]] = {width: [] for width in range(1, widest + 1)}
        self._draft_seconds: list[float] = []
        for _ in range(_WARM_UP):
            self.sample()
        self._forget()

    @property
    def samples(self) -> int:
        """Samples taken so far: `costs` can start from here later."""
        return len(self._seconds[1])

    def sample(self, count: int = 1) -> None:
        """Time every width once, `count` times, each time beginning with another width."""
        for _ in range(count):
            start = self.samples % len(self._seconds)
            widths = list(self._seconds)
            for width in (*widths[start:], *widths[:start]):
                self._seconds[width].append(_pass(self._target, self._state, self._next[:width]))
            if self._draft is not None and self._draft_state is not None:
                self._draft_seconds.append(_pass(self._draft, self._draft_state, self._next[:1]))

    def costs(self, *, since: int = 0) -> Costs:
        """Return the medians of the samples from number `since` on."""
        return Costs(
            context=self._context,
            samples=self.samples - since,
            target_seconds={width: median(seconds[since:]) for width, seconds in self._seconds.items()},
            draft_seconds=median(self._draft_seconds[since:]) if self._draft_seconds else None,
        )

    def close(self) -> None:
        self._state.close()
        if self._draft_state is not None:
            self._draft_state.close()

    def _forget(self) -> None:
        self._draft_seconds.clear()
        for seconds in self._seconds.values():
            seconds.clear()


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
