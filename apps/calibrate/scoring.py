"""Judges answers: exact match and number match."""

from __future__ import annotations

from .answer_numbers import last_number
from .task_files import Kind, Task


def judge(task: Task, answer: str) -> bool | None:
    """Return whether an answer is correct; None if the task has nothing to compare with."""
    if task.kind is Kind.WRITTEN:
        return None
    if task.kind is Kind.NUMBER:
        expected = last_number(task.reference)
        return None if expected is None else last_number(answer) == expected
    return answer.split() == task.reference.split()
