"""Answer tasks in several ways ("arms"), interleaved, and score the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from edgedecode import Pair, SessionOptions, Stats

from .task_files import Task

__all__ = ["Answered", "ArmResult", "answer_tasks", "arm_results"]

BLOCK = 25
"""Tasks that an arm answers before the next one: the machine's speed drifts, and all arms see the same drift."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One task's answer by one arm, with the tokens and seconds of all its turns, prompts included."""

    task: str
    arm: str
    text: str
    tokens: int
    verified: int
    """Tokens that the target wrote or verified."""
    taken_back: int
    seconds: float


@dataclass(slots=True)
class ArmResult:
    """All answers of one arm."""

    correct: list[bool] = field(default_factory=list)
    """Of the tasks that are scored."""
    tokens: int = 0
    verified: int = 0
    taken_back: int = 0
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


def answer_tasks(
    pair: Pair,
    tasks: Sequence[Task],
    arms: Mapping[str, SessionOptions],
    *,
    max_tokens: int,
    done: Collection[tuple[str, str]] = (),
) -> Iterator[Answered]:
    """Yield each task's answer by each arm, in blocks of tasks. done: (task, arm) that are left out."""
    for start in range(0, len(tasks), BLOCK):
        block = tasks[start : start + BLOCK]
        for arm, options in arms.items():
            missing = [task for task in block if (task.name, arm) not in done]
            if not missing:
                continue
            with pair.session(options) as session:
                for task in missing:
                    session.reset(task.history)
                    started, turns, text = perf_counter(), list[Stats](), ""
                    for turn in task.turns:
                        answer = session.generate(turn, max_tokens=max_tokens)
                        text = answer.text
                        turns.append(answer.stats)
                    yield Answered(
                        task.name,
                        arm,
                        text,
                        tokens=sum(stats.tokens for stats in turns),
                        verified=sum(stats.verified_tokens for stats in turns),
                        taken_back=sum(stats.taken_back for stats in turns),
                        seconds=perf_counter() - started,
                    )


def arm_results(
    answers: Sequence[Answered], tasks: Sequence[Task], correct: Callable[[Task, str], bool | None]
) -> dict[str, ArmResult]:
    """Return each arm's results, in the order of the tasks. correct: None for a task that is not scored."""
    by_place = {(answer.task, answer.arm): answer for answer in answers}
    results: dict[str, ArmResult] = {answer.arm: ArmResult() for answer in answers}
    for arm, result in results.items():
        for task in tasks:
            answer = by_place[task.name, arm]
            result.tokens += answer.tokens
            result.verified += answer.verified
            result.taken_back += answer.taken_back
            result.seconds += answer.seconds
            if (found := correct(task, answer.text)) is not None:
                result.correct.append(found)
    return results
