"""Judges answers: exact match, number match, pass@1 of code; and measures the perplexity of references."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.text_scores import ScoredText, score_rows
from edgedecode.text.messages import Message
from edgedecode.text.tokenizer import Tokenizer

from .answer_numbers import last_number
from .code_sandbox import CodeLimits, run_tests
from .code_tasks import program_of
from .task_files import Kind, Task

__all__ = ["Judgement", "ReferenceLoss", "judge", "perplexity", "reference_loss"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether an answer is correct, and for a wrong one why. correct: None if the task has nothing to compare with."""

    correct: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReferenceLoss:
    """A model's loss on the reference answer of a task, in nats summed over its tokens."""

    nats: float
    tokens: int


def judge(task: Task, answer: str, *, limits: CodeLimits | None = None) -> Judgement:
    """Judge an answer in the way of the task's kind. Raises CapabilityError where code cannot be run."""
    if task.kind is Kind.WRITTEN:
        return Judgement(None)
    if task.kind is Kind.CODE:
        assert task.code is not None
        verdict = run_tests(
            program_of(answer, task.code),
            task.code.tests,
            names=task.code.names,
            prelude=task.code.prelude,
            limits=limits,
        )
        return Judgement(verdict.passed, verdict.reason)
    if task.kind is Kind.NUMBER:
        return _judged_number(answer, task.reference)
    same = " ".join(answer.split()) == " ".join(task.reference.split())
    return Judgement(same, "" if same else "it differs from the reference")


def _judged_number(answer: str, reference: str) -> Judgement:
    found, expected = last_number(answer), last_number(reference)
    if expected is None:  # a reference of our number families without a number
        return Judgement(None, "the reference has no number")
    if found is None:
        return Judgement(False, "it has no number")
    return Judgement(found == expected, "" if found == expected else f"{found} is not {expected}")


def reference_loss(model: LanguageModel, tokenizer: Tokenizer, task: Task) -> ReferenceLoss | None:
    """Score the task's reference as the answer to its turn; None without one, or if both exceed the context."""
    if not task.reference or len(task.turns) != 1:
        return None
    prompt = tokenizer.encode(tokenizer.render([*task.history, Message("user", task.turns[0])]))
    reference = tokenizer.encode(task.reference)
    if not prompt or not reference or len(prompt) + len(reference) > model.card.context:
        return None
    text = ScoredText((*prompt, *reference), len(prompt))
    nats = sum(float(rows.losses.sum(dtype=np.float64)) for rows in score_rows(model, text))
    return ReferenceLoss(nats, len(reference))


def perplexity(losses: Iterable[ReferenceLoss]) -> float | None:
    """Return the perplexity per token of all references together; None if there are none."""
    some = list(losses)
    tokens = sum(loss.tokens for loss in some)
    mean = sum(loss.nats for loss in some) / tokens if tokens else math.nan
    return math.exp(mean) if math.isfinite(mean) and mean < 700 else None
