"""Answers tasks in several ways ("arms"), interleaved, and judges the answers."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from edgedecode import Completion, ContextExceeded, Pair, Session, SessionOptions, SwitchOptions
from edgedecode.pack.entries import SwitchPoint
from edgedecode.switching.rule import SwitchRule

from .task_files import Kind, Task, last_number

TARGET, SPECULATION, DRAFT = "target", "speculation", "draft"
DRAFT_ALONE = SwitchOptions(rule=SwitchRule(up=1e9))
"""The draft model writes everything: no signal reaches this threshold."""
BLOCK = 25
"""Tasks that an arm answers before the next one: the machine's speed drifts, and all arms see the same drift."""
RESAMPLES = 4000
"""Of the bootstrap. More make the bound steadier, and take longer."""


@dataclass(slots=True)
class ArmResult:
    """All answers of one arm: their texts by task, and the tokens and seconds of all turns, prompts included."""

    texts: dict[str, str] = field(default_factory=dict)
    """The answer to the last turn; empty if the conversation exceeds the context before."""
    correct: list[bool] = field(default_factory=list)
    tokens: int = 0
    verified: int = 0
    """Tokens that the target wrote or verified."""
    seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / len(self.correct) if self.correct else 0.0

    @property
    def target_share(self) -> float:
        return self.verified / self.tokens if self.tokens else 1.0

    @property
    def speed(self) -> float:
        """Tokens per second, prompts included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def add(self, session: Session, task: Task, *, max_tokens: int) -> None:
        """Answer all turns of a task."""
        session.reset(task.history)
        turns: list[Completion] = []
        started = perf_counter()
        with suppress(ContextExceeded):
            for turn in task.turns:
                turns.append(session.generate(turn, max_tokens=max_tokens))  # noqa: PERF401  (kept if a later one fails)
        self.seconds += perf_counter() - started
        self.texts[task.name] = turns[-1].text if len(turns) == len(task.turns) else ""
        for each in turns:
            self.tokens += each.stats.tokens
            self.verified += each.stats.verified_tokens


def measure_arms(
    pair: Pair,
    tasks: Sequence[Task],
    arms: Mapping[str, SessionOptions],
    *,
    max_tokens: int,
    advance: Callable[[], None],
) -> dict[str, ArmResult]:
    """Answer the tasks in every way, one of which is the target's, in blocks, and judge the answers.

    advance: called after each answer.
    """
    results = {name: ArmResult() for name in arms}
    for start in range(0, len(tasks), BLOCK):
        for name, options in arms.items():
            with pair.session(options) as session:
                for task in tasks[start : start + BLOCK]:
                    results[name].add(session, task, max_tokens=max_tokens)
                    advance()
    for result in results.values():
        result.correct = [
            is_correct(task, result.texts[task.name], by_target=results[TARGET].texts[task.name]) for task in tasks
        ]
    return results


def is_correct(task: Task, answer: str, *, by_target: str) -> bool:
    """Compare an answer with the task's reference; without one, with the target's answer."""
    if task.kind is Kind.NUMBER:
        return last_number(answer) == last_number(task.reference)
    return answer.split() == (by_target if task.kind is Kind.WRITTEN else task.reference).split()


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
    """Return the one-sided lower bound, at 95%, of the ratio of two accuracies over the same tasks (paired bootstrap).

    0 if the target answers none. Resampled sets in which it answers none count as infinite if `found` has an answer,
    and as 1 if not.
    """
    if not any(target):
        return 0.0
    chosen = np.random.default_rng(0).integers(0, len(target), (RESAMPLES, len(target)))
    one, two = (np.asarray(arm, np.float64)[chosen].mean(axis=1) for arm in (found, target))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(two > 0, one / two, np.where(one > 0, np.inf, 1.0))
    return float(np.quantile(ratios, 0.05, method="lower"))  # infinite values do not allow interpolation
