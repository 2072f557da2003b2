"""How long passes of one and several tokens take, of several models in turn, so that all see the same machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from edgedecode.protocols import LanguageModel, State

__all__ = ["CONTEXT", "SAMPLES", "WIDTHS", "Speeds", "measure_speeds"]

WIDTHS = (1, 4, 8)
CONTEXT = 256
SAMPLES = 15
_WARM_UP = 2
_LEAD_IN = 8
"""Rows passed, untimed, before a pass is timed: behind another width, or another model, the first ones are slow."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Median seconds of a pass by its width, all its rows scored."""

    seconds: dict[int, float]

    @property
    def tokens_per_second(self) -> float:
        """Of plain decoding, the engine's part alone."""
        return 1 / self.seconds[1]

    def c(self, width: int) -> float:
        """Return what a pass over `width` tokens costs, in passes over one."""
        return self.seconds[width] / self.seconds[1]


def measure_speeds(
    models: Sequence[LanguageModel], *, samples: int = SAMPLES, progress: Callable[[int], None] = lambda amount: None
) -> list[Speeds]:
    """Time passes behind 256 tokens (or what the context allows), models and widths taking turns."""
    states: list[State] = []
    taken: list[dict[int, list[float]]] = [{width: [] for width in WIDTHS} for _ in models]
    try:
        states.extend(_filled(model) for model in models)
        for number in range(-_WARM_UP, samples):
            for model, state, seconds in zip(models, states, taken, strict=True):
                for width in WIDTHS:
                    passed = _timed(model, state, width)
                    if number >= 0:
                        seconds[width].append(passed)
            progress(1 if number >= 0 else 0)
    finally:
        for state in states:
            state.close()
    return [Speeds({width: median(values) for width, values in seconds.items()}) for seconds in taken]


def _filled(model: LanguageModel) -> State:
    length = min(CONTEXT, model.card.context - max(WIDTHS))
    state = model.new_state(length + max(WIDTHS), rows=max(WIDTHS))
    model.forward(_tokens(model, length), state, rows="none")
    state.keep(range(length))
    return state


def _timed(model: LanguageModel, state: State, width: int) -> float:
    tokens = _tokens(model, width)
    for _ in range(_LEAD_IN // width):
        _pass(model, state, tokens)
    started = perf_counter()
    _pass(model, state, tokens)
    return perf_counter() - started


def _pass(model: LanguageModel, state: State, tokens: Sequence[int]) -> None:
    length = state.length
    model.forward(tokens, state, rows="all")
    state.crop(length)


def _tokens(model: LanguageModel, count: int) -> list[int]:
    """Return some ids: what a pass costs does not depend on which."""
    return [(7 * index + 5) % model.card.vocabulary_size for index in range(count)]
