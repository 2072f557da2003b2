"""Times target passes, and draft steps of the full draft and of a trimmed one.

Samples are interleaved, so that changes in machine load affect all of them alike; medians are reported.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter

from edgedecode.decoding.model import LanguageModel, State
from edgedecode.engines.pass_timing import filled_state, timed_pass

from .forced_acceptance import LENGTHS

REPETITIONS = 21
"""Minimum number of samples of each measurement."""
CONTEXT = 256
"""Tokens in the KV cache while passes are timed."""
_WARM_UP = 3
_SECONDS, _MOST = 3.0, 2001
"""Short passes are sampled for this many seconds, or this many times, because their medians need more samples."""
_STEPS = 2
"""Draft steps timed together after a target pass, because the first of them finds cold CPU caches."""


def time_target(target: LanguageModel, tokens: Sequence[int], *, repetitions: int = REPETITIONS) -> dict[int, float]:
    """Return median seconds of passes over 1 to 9 tokens after the same context, each after one of the same width."""
    widths = (1, *(length + 1 for length in LENGTHS))
    room = max(widths)
    text = _text(tokens, min(CONTEXT, target.card.context - room) + room)
    state = filled_state(target, text[:-room], room=room, rows=room)

    def second_pass(width: int) -> float:
        piece = text[-room : len(text) - room + width]
        timed_pass(target, state, piece, rows="all")
        return timed_pass(target, state, piece, rows="all")

    try:
        samples = _interleaved([partial(second_pass, width) for width in widths], repetitions)
    finally:
        state.close()
    return {width: median(each) for width, each in zip(widths, samples, strict=True)}


def time_drafts(
    target: LanguageModel,
    whole: LanguageModel,
    trimmed: LanguageModel,
    *,
    tokens: Sequence[int],
    repetitions: int = REPETITIONS,
) -> tuple[float, float]:
    """Time draft steps after target passes, interleaved: of the full draft and of the trimmed one.

    Returns median seconds of the full draft's step, and the trimmed one's time relative to it: the median over pairs of
    adjacent samples, so that other load on the machine mostly cancels out.
    """
    context = min(CONTEXT, *(model.card.context - _STEPS for model in (target, whole, trimmed)))
    text = _text(tokens, context + _STEPS)
    target_state = filled_state(target, text[:context], room=1, rows=1)
    whole_state = filled_state(whole, text[:context], room=_STEPS, rows=1)
    trimmed_state = filled_state(trimmed, text[:context], room=_STEPS, rows=1)

    def step(model: LanguageModel, state: State) -> float:
        timed_pass(target, target_state, text[context : context + 1], rows="all")
        return sum(timed_pass(model, state, [token], rows="last") for token in text[context:]) / _STEPS

    try:
        steps = [partial(step, whole, whole_state), partial(step, trimmed, trimmed_state)]
        samples = _interleaved(steps, repetitions)
    finally:
        for state in (target_state, whole_state, trimmed_state):
            state.close()
    return median(samples[0]), median(less / full for full, less in zip(*samples, strict=True))


def _interleaved(measures: Sequence[Callable[[], float]], least: int) -> list[list[float]]:
    """Take samples of all measures in turn, after a warm-up: `least` of each, and more of short passes.

    A `least` below REPETITIONS is also the maximum.
    """
    started, samples = perf_counter(), []
    for number in count(-_WARM_UP):
        enough = least < REPETITIONS or number >= _MOST or perf_counter() - started > _SECONDS
        if number >= least and enough:
            break
        samples.append([measure() for measure in measures])
    return [[*each] for each in zip(*samples[_WARM_UP:], strict=True)]


def _text(tokens: Sequence[int], length: int) -> list[int]:
    return (list(tokens) * (1 + length // len(tokens)))[:length]
