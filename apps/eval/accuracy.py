"""Sums up judged answers by arm: accuracy with intervals, in total and by family, speed and the target's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from ..tasks.intervals import Interval, paired_difference, paired_ratio, share_interval, share_lower_bound
from ..tasks.task_files import Kind, Task
from .answers_file import Judged

__all__ = ["ArmAccuracy", "accuracies", "accuracy_json"]


@dataclass(slots=True)
class ArmAccuracy:
    """What one arm's answers to all tasks come to."""

    name: str
    results: dict[str, bool] = field(default_factory=dict)
    """By task that is judged: whether the answer is correct."""
    families: dict[str, list[bool]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    """Of wrong answers to code tasks."""
    answers: int = 0
    tokens: int = 0
    verified: int = 0
    taken_back: int = 0
    incomplete: int = 0
    """Conversations that exceeded the context."""
    seconds: float = 0.0

    @property
    def share(self) -> Interval | None:
        """The share of correct answers; None if nothing is judged."""
        return share_interval(sum(self.results.values()), len(self.results)) if self.results else None

    @property
    def tokens_per_second(self) -> float:
        """Over whole answers, prompts included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def target_share(self) -> float:
        """Share of the tokens that the target wrote or verified."""
        return self.verified / self.tokens if self.tokens else 0.0

    def ratio(self, other: ArmAccuracy) -> Interval | None:
        """Return this accuracy divided by another's, over the same tasks; None if that is 0 or nothing is judged."""
        mine, theirs = self._pairs(other)
        return paired_ratio(mine, theirs) if mine else None

    def ratio_lower_bound(self, other: ArmAccuracy) -> float | None:
        """Return the one-sided lower bound of that ratio."""
        mine, theirs = self._pairs(other)
        found = paired_ratio(mine, theirs, one_sided=True) if mine else None
        return None if found is None else found.low

    def difference(self, other: ArmAccuracy) -> Interval | None:
        """Return this accuracy less another's, over the same tasks; None if nothing is judged."""
        mine, theirs = self._pairs(other)
        return paired_difference(mine, theirs) if mine else None

    def _pairs(self, other: ArmAccuracy) -> tuple[list[bool], list[bool]]:
        both = [task for task in self.results if task in other.results]
        return [self.results[task] for task in both], [other.results[task] for task in both]


def accuracies(answers: Sequence[Judged], tasks: Sequence[Task], names: Sequence[str]) -> list[ArmAccuracy]:
    """Return the results of the arms of these names, families in the order of the tasks."""
    arms = {name: ArmAccuracy(name) for name in names}
    by_place = {(answer.task, answer.arm): answer for answer in answers}
    for task in tasks:
        for name, arm in arms.items():
            answer = by_place[task.name, name]
            arm.answers += 1
            arm.tokens += answer.tokens
            arm.verified += answer.verified
            arm.taken_back += answer.taken_back
            arm.seconds += answer.seconds
            arm.incomplete += not answer.complete
            if answer.correct is not None:
                arm.results[task.name] = answer.correct
                arm.families.setdefault(task.family, []).append(answer.correct)
                if task.kind is Kind.CODE and not answer.correct:
                    arm.reasons[answer.reason] += 1
    return list(arms.values())


def accuracy_json(arm: ArmAccuracy, first: ArmAccuracy) -> dict[str, object]:
    """Return all figures of an arm; `first` is the one that others are compared with."""
    share = arm.share
    correct = sum(arm.results.values())
    return {
        "correct": correct,
        "judged": len(arm.results),
        "accuracy": None if share is None else asdict(share),
        "accuracy_lower_bound": share_lower_bound(correct, len(arm.results)) if arm.results else None,
        "ratio": _fields(arm.ratio(first)),
        "ratio_lower_bound": arm.ratio_lower_bound(first),
        "difference": _fields(arm.difference(first)),
        "answers": arm.answers,
        "incomplete": arm.incomplete,
        "tokens": arm.tokens,
        "seconds": round(arm.seconds, 6),
        "tokens_per_second": round(arm.tokens_per_second, 3),
        "target_share": round(arm.target_share, 6),
        "taken_back": arm.taken_back,
        "families": {
            family: {"correct": sum(found), "judged": len(found), **asdict(share_interval(sum(found), len(found)))}
            for family, found in arm.families.items()
        },
        "code_failures": dict(arm.reasons.most_common()),
    }


def _fields(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else asdict(interval)
