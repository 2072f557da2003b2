"""Calibration questions: tasks with what makes an answer correct, given the target's own answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedecode import InputError

from ..tasks.scoring import is_correct
from ..tasks.task_files import Kind, Task, read_tasks
from .switch_arms import Question

__all__ = ["read_questions"]


def read_questions(path: Path, *, limit: int | None) -> Sequence[Question]:
    """Return the questions of a file, evenly from every family. Raises InputError; code tasks cannot calibrate."""
    tasks = read_tasks(path, limit=limit)
    if any(task.kind is Kind.CODE for task in tasks):
        raise InputError(f"{path} holds code tasks: calibrate on questions whose answers are compared as text")
    return [_question(task) for task in tasks]


def _question(task: Task) -> Question:
    def correct(answer: str, by_target: str) -> bool:
        found = is_correct(task, answer)
        return answer.split() == by_target.split() if found is None else found

    return Question(task.name, task.history, task.turns[0], correct)
