"""Answer tasks in several ways ("arms"), interleaved, and score the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from edgedecode import Completion, ContextExceeded, Pair, Session, SessionOptions, SwitchOptions
from edgedecode.switching.rule import SwitchRule

from .task_files import Task

DRAFT_ALONE = SwitchOptions(rule=SwitchRule(up=1e9))
"""The draft model writes everything: no signal reaches this threshold."""

BLOCK = 25
"""Tasks that an arm answers before the next one: the machine's speed drifts, and all arms see the same drift."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One task's answer by one arm, with the tokens and seconds of all its turns, prompts included."""

    task: str
    arm: str
    text: str
    """The answer to the last turn; empty if the conversation exceeds the context before."""
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
    pair: Pair, tasks: Sequence[Task], arms: Mapping[str, SessionOptions], *, max_tokens: int
) -> Iterator[Answered]:
    """Yield each task's answer by each arm, in blocks of tasks."""
    for start in range(0, len(tasks), BLOCK):
        for arm, options in arms.items():
            with pair.session(options) as session:
                for task in tasks[start : start + BLOCK]:
                    yield _answered(session, task, arm, max_tokens=max_tokens)


def _answered(session: Session, task: Task, arm: str, *, max_tokens: int) -> Answered:
    """Answer all turns of a task."""
    session.reset(task.history)
    turns: list[Completion] = []
    started = perf_counter()
    with suppress(ContextExceeded):
        for turn in task.turns:
            turns.append(session.generate(turn, max_tokens=max_tokens))  # noqa: PERF401  (kept if a later one fails)
    return Answered(
        task.name,
        arm,
        turns[-1].text if len(turns) == len(task.turns) else "",
        tokens=sum(turn.stats.tokens for turn in turns),
        verified=sum(turn.stats.verified_tokens for turn in turns),
        taken_back=sum(turn.stats.taken_back for turn in turns),
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
