"""Score an answer against a task's reference."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from .task_files import Kind, Task

__all__ = ["is_correct", "last_number"]

_NUMBER = re.compile(r"[-−]?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-−]?\$?\.\d+")


def is_correct(task: Task, answer: str) -> bool | None:
    """Return whether an answer is correct; None: this kind of task is not scored by comparing texts."""
    if task.kind is Kind.EXACT:
        return answer.split() == task.reference.split()
    if task.kind is Kind.NUMBER:
        number = last_number(answer)
        return number is not None and number == last_number(task.reference)
    return None


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text: with thousands separators, a currency sign or an exponent, or None."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    try:
        return Decimal(found[-1].replace(",", "").replace("$", "").replace("−", "-"))
    except InvalidOperation:
        return None
