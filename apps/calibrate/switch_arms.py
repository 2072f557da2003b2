"""Measure a switching curve: the answers at each threshold against those of the target and of speculation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt

from edgedecode import Message, Pair, SessionOptions
from edgedecode.pack.switch_curve import SwitchPoint

__all__ = ["SPECULATION", "TARGET", "ArmResult", "Question", "measure_arms", "point_of", "quality_low"]

TARGET, SPECULATION = "target", "speculation"
BLOCK = 25
"""Questions that an arm answers before the next one: the machine's speed drifts, and all arms see the same drift."""
RESAMPLES = 2000
LOWER = 0.05
"""Of the one-sided lower bound."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with its earlier messages, and what makes an answer correct, given the target's own answer."""

    name: str
    history: tuple[Message, ...]
    prompt: str
    correct: Callable[[str, str], bool]


@dataclass(slots=True)
class ArmResult:
    """The answers of one way to decode."""

    texts: list[str] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    tokens: int = 0
    verified: int = 0
    """Tokens that the target wrote or verified."""
    taken_back: int = 0
    seconds: float = 0.0
    """Prompts included."""

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / len(self.correct)

    @property
    def target_share(self) -> float:
        return self.verified / self.tokens if self.tokens else 1.0

    @property
    def speed(self) -> float:
        """Tokens per second, prompts included."""
        return self.tokens / self.seconds if self.seconds else 0.0


def measure_arms(
    pair: Pair,
    questions: Sequence[Question],
    arms: Mapping[str, SessionOptions],
    *,
    max_tokens: int,
    advance: Callable[[], None],
) -> dict[str, ArmResult]:
    """Answer the questions in every way, interleaved in blocks; the first arm must be the target with plain decoding.

    advance: called after each answer.
    """
    results = {name: ArmResult() for name in arms}
    for start in range(0, len(questions), BLOCK):
        block = questions[start : start + BLOCK]
        for name, options in arms.items():
            with pair.session(options) as session:
                for question in block:
                    session.reset(question.history)
                    started = perf_counter()
                    answer = session.generate(question.prompt, max_tokens=max_tokens)
                    result = results[name]
                    result.seconds += perf_counter() - started
                    result.texts.append(answer.text)
                    result.tokens += answer.stats.tokens
                    result.verified += answer.stats.verified_tokens
                    result.taken_back += answer.stats.taken_back
                    advance()
        reference = results[next(iter(arms))]
        for result in results.values():
            for index, question in enumerate(block, start):
                result.correct.append(question.correct(result.texts[index], reference.texts[index]))
    return results


def point_of(up: float, found: ArmResult, target: ArmResult) -> SwitchPoint:
    """Return a threshold's place on the curve."""
    return SwitchPoint(
        up=up,
        accuracy=found.accuracy,
        quality=found.accuracy / target.accuracy,
        quality_low=quality_low(found.correct, target.correct),
        target_share=found.target_share,
        speed=found.speed / target.speed,
    )


def quality_low(found: Sequence[bool], target: Sequence[bool]) -> float:
    """Return the lower bound of the ratio of two accuracies over the same questions: paired bootstrap, 95%, seeded."""
    pairs: npt.NDArray[np.float64] = np.array([found, target], np.float64)
    draws = np.random.default_rng(0).integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
    sums = pairs[:, draws].sum(axis=2)
    ratios = sums[0] / np.maximum(sums[1], 1.0)
    return float(np.quantile(ratios, LOWER))
