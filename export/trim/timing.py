"""Times target passes, draft steps and full answers: with the full head, with a trimmed one, and without a draft.

Samples are interleaved, so that changes in machine load affect all of them alike; medians are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median
from time import perf_counter

from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.pass_timing import Forward, filled_state, timed_pass
from edgedecode.text.prompts import Prompt

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
DRAFTER = "trim"
"""The drafter that uses the trimmed head."""
ANSWER_REPETITIONS = 5
ANSWERS_PER_PROMPT = 3 * ANSWER_REPETITIONS
MAX_TOKENS = 64
"""Tokens of every timed answer, so that all arms generate the same text."""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Median seconds of the target's passes by width, each after a pass of the same width."""

    seconds: dict[int, float]

    def c(self, width: int) -> float:
        """Return the cost of a pass over `width` tokens, relative to a pass over one."""
        return self.seconds[width] / self.seconds[1]


@dataclass(frozen=True, slots=True)
class HeadTimes:
    """Median seconds of a draft step with the full head, and the trimmed head's median time relative to it.

    The ratio is the median over pairs of adjacent samples, so that other load on the machine mostly cancels out.
    """

    whole_seconds: float
    ratio: float


def time_target(target: LanguageModel, tokens: Sequence[int], *, repetitions: int = REPETITIONS) -> PassTimes:
    """Time passes over 1 to 9 tokens after the same context, interleaving the widths."""
    widths = (1, *(length + 1 for length in LENGTHS))
    room = max(widths)
    text = _text(tokens, min(CONTEXT, target.card.context - room) + room)
    samples: dict[int, list[float]] = {width: [] for width in widths}
    state = filled_state(target, text[:-room], room=room, rows=room)
    try:
        for repetition in _samples(repetitions):
            for width in widths:
                timed_pass(target, state, text[-room : len(text) - room + width], rows="all")
                seconds = timed_pass(target, state, text[-room : len(text) - room + width], rows="all")
                if repetition >= 0:
                    samples[width].append(seconds)
    finally:
        state.close()
    return PassTimes({width: median(each) for width, each in samples.items()})


def time_heads(
    target: LanguageModel,
    whole: LanguageModel,
    trimmed: LanguageModel,
    head: Forward,
    *,
    tokens: Sequence[int],
    repetitions: int = REPETITIONS,
) -> HeadTimes:
    """Time draft steps after target passes, interleaved: with the full draft and with `head`, a head of `trimmed`."""
    context = min(CONTEXT, *(model.card.context - _STEPS for model in (target, whole, trimmed)))
    text = _text(tokens, context + _STEPS)
    target_state = filled_state(target, text[:context], room=1, rows=1)
    whole_state = filled_state(whole, text[:context], room=_STEPS, rows=1)
    trimmed_state = filled_state(trimmed, text[:context], room=_STEPS, rows=1)
    samples: tuple[list[float], list[float]] = ([], [])
    try:
        for repetition in _samples(repetitions):
            for seconds, forward, state in ((samples[0], whole, whole_state), (samples[1], head, trimmed_state)):
                timed_pass(target, target_state, text[context : context + 1], rows="all")
                taken = sum(timed_pass(forward, state, [token], rows="last") for token in text[context:]) / _STEPS
                if repetition >= 0:
                    seconds.append(taken)
    finally:
        for state in (target_state, whole_state, trimmed_state):
            state.close()
    return HeadTimes(median(samples[0]), median(less / full for full, less in zip(*samples, strict=True)))


def _samples(least: int) -> Iterator[int]:
    """Yield sample numbers, negative ones for warm-up: `least` samples, and more for short passes.

    A `least` below REPETITIONS is also the maximum.
    """
    started = perf_counter()
    for number in count(-_WARM_UP):
        enough = least < REPETITIONS or number >= _MOST or perf_counter() - started > _SECONDS
        if number >= least and enough:
            return
        yield number


def _text(tokens: Sequence[int], length: int) -> list[int]:
    return (list(tokens) * (1 + length // len(tokens)))[:length]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speed-ups over plain decoding of full answers, prefill included."""

    whole: float
    trimmed: float


@dataclass(frozen=True, slots=True)
class _Arm:
    name: str
    options: SessionOptions


def measure_speeds(
    pair: Pair,
    prompts: Mapping[str, Sequence[Prompt]],
    *,
    whole_length: int,
    trimmed_length: int,
    repetitions: int = ANSWER_REPETITIONS,
    advance: Callable[[int], None] = lambda amount: None,
) -> dict[str, Speeds]:
    """Answer each category's prompts greedily with each arm in turn; return median speed-ups over the repetitions.

    Times are summed per repetition, so that a temporary slowdown affects all arms of one repetition alike.
    Calls `advance(1)` per answer, by default `ANSWERS_PER_PROMPT` times per prompt.
    """
    arms = (
        _Arm("plain", _options("none", None)),
        _Arm("whole", _options("model", whole_length)),
        _Arm("trimmed", _options(DRAFTER, trimmed_length)),
    )
    found = {}
    for category, members in prompts.items():
        ratios = []
        for repetition in range(repetitions):
            seconds = dict.fromkeys((arm.name for arm in arms), 0.0)
            for number, prompt in enumerate(members):
                for turn in range(len(arms)):
                    arm = arms[(turn + number + repetition) % len(arms)]
                    seconds[arm.name] += _seconds(pair, prompt, arm.options)
                    advance(1)
            ratios.append(Speeds(seconds["plain"] / seconds["whole"], seconds["plain"] / seconds["trimmed"]))
        found[category] = Speeds(median(each.whole for each in ratios), median(each.trimmed for each in ratios))
    return found


def _options(drafter: str, length: int | None) -> SessionOptions:
    return SessionOptions(sampling=SamplingOptions(), drafter=drafter, draft_max=length, ignore_eos=True, seed=0)


def _seconds(pair: Pair, prompt: Prompt, options: SessionOptions) -> float:
    """Time the answer to a prompt's first turn."""
    with pair.session(options, messages=prompt.history) as session:
        started = perf_counter()
        session.generate(prompt.turns[0], max_tokens=MAX_TOKENS)
        return perf_counter() - started
