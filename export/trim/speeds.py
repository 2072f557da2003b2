"""Whole answers timed on the trimmed pack: plain decoding, the whole draft and the trimmed one, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.text.prompts import Prompt

__all__ = ["ANSWERS_PER_PROMPT", "DRAFTER", "MAX_TOKENS", "REPETITIONS", "Speeds", "measure_speeds"]

DRAFTER = "trim"
"""Who drafts with the trimmed head."""
REPETITIONS = 5
ANSWERS_PER_PROMPT = 3 * REPETITIONS
MAX_TOKENS = 64
"""Every answer has so many, whatever it says: arms are compared over the same text."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Times over plain decoding of whole answers, their prompts included."""

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
    repetitions: int = REPETITIONS,
    advance: Callable[[int], None] = lambda amount: None,
) -> dict[str, Speeds]:
    """Answer each category's prompts greedily with each arm in turn, and compare the sums of each repetition.

    The median of the repetitions counts: what slows the machine for a while slows all arms of one.
    `advance` is told of every answer, `ANSWERS_PER_PROMPT` of them with these repetitions.
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
