"""The points of a switching curve, and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edgedecode import Pair, SessionOptions
from edgedecode.pack.switch_curve import SwitchPoint

from .arms import Answered, ArmResult, answer_tasks, arm_results
from .scoring import judge
from .task_files import Task

TARGET, SPECULATION = "target", "speculation"
RESAMPLES = 4000
"""Of the bootstrap. More make the bound steadier, and take longer."""


def measure_arms(
    pair: Pair,
    tasks: Sequence[Task],
    arms: Mapping[str, SessionOptions],
    *,
    max_tokens: int,
    advance: Callable[[], None],
) -> dict[str, ArmResult]:
    """Answer the tasks in every way, one of which is the target's, and score the answers.

    A task without a reference counts as correct where the answer is the target's. advance: called after each answer.
    """
    answers: list[Answered] = []
    for answer in answer_tasks(pair, tasks, arms, max_tokens=max_tokens):
        answers.append(answer)
        advance()
    by_target = {answer.task: answer.text.split() for answer in answers if answer.arm == TARGET}

    def correct(task: Task, text: str) -> bool:
        found = judge(task, text)
        return text.split() == by_target[task.name] if found is None else found

    return arm_results(answers, tasks, correct)


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


def quality_low(found: Sequence[bool], target: Sequence[bool], *, seed: int = 0) -> float:
    """Return the one-sided lower bound, at 95%, of the ratio of two accuracies over the same tasks (paired bootstrap).

    0 if the target answers none. Resampled sets in which it answers none count as infinite if `found` has an answer,
    and as 1 if not.
    """
    if not any(target):
        return 0.0
    chosen = np.random.default_rng(seed).integers(0, len(target), (RESAMPLES, len(target)))
    one, two = (np.asarray(arm, np.float64)[chosen].mean(axis=1) for arm in (found, target))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(two > 0, one / two, np.where(one > 0, np.inf, 1.0))
    return float(np.quantile(ratios, 0.05, method="lower"))  # infinite values do not allow interpolation
