"""Drafts of a known acceptance: the target's own recorded answer with mistakes strewn in.

With it any model and device shows what verification costs there and what a drafter would have to be worth; acceptance
0 is the hostile drafter, which a scheduler must turn off.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode import InputError
from edgedecode.decoding.counter_rng import mixed
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.probs import UniformSource
from edgedecode.decoding.verify import Verdict
from edgedecode.drafters.source import DraftSetting

from .timed import Script, TimedModel

__all__ = ["SYNTHETIC", "SyntheticDrafter", "SyntheticSource"]

SYNTHETIC = "synthetic"


class SyntheticSource:
    """Opens drafters that replay the answers last recorded; needs no model, and no entry point names it.

    acceptance: the chance of each drafted token to be the target's own, 0 to 1. The mistakes are the same ones in
    every session, so all draft lengths meet them alike. target: is made to say the recorded answer while these drafts
    are verified, for one near tie that turns with a pass's width would leave the rest of the record behind; None: it
    speaks freely.
    """

    name = SYNTHETIC
    needs_model = False
    needs: Sequence[str] = ()

    def __init__(self, acceptance: float, *, seed: int = 0) -> None:
        if not 0 <= acceptance <= 1:
            raise InputError(f"--synthetic {acceptance:g} is out of range: an acceptance is 0 to 1")
        self.acceptance = acceptance
        self._seed = seed
        self.target: TimedModel | None = None
        self._answers: list[tuple[int, ...]] = []

    def record(self, answers: Sequence[Sequence[int]]) -> None:
        """Replay these from now on: what the target said in each turn of a prompt."""
        self._answers = [tuple(answer) for answer in answers]

    def open(self, setting: DraftSetting) -> Drafter:
        answers = [self._with_mistakes(number, setting.vocabulary_size) for number in range(len(self._answers))]
        return SyntheticDrafter(answers, self._answers, self.target)

    def close(self) -> None:
        """Nothing is shared."""

    def _with_mistakes(self, number: int, vocabulary_size: int) -> tuple[int, ...]:
        key = mixed(self._seed * 1000003 + number)
        right = [mixed(key + index) < self.acceptance * 2**64 for index in range(len(self._answers[number]))]
        answer = self._answers[number]
        return tuple(
            token if good else (token + 1) % vocabulary_size for token, good in zip(answer, right, strict=True)
        )


class SyntheticDrafter:
    """Proposes the answer of each generation in turn, from wherever the context has got to.

    answers: what it proposes; truth: what `target` is made to say.
    """

    name = SYNTHETIC
    nbytes = 0
    free = True

    def __init__(
        self, answers: Sequence[tuple[int, ...]], truth: Sequence[tuple[int, ...]], target: TimedModel | None
    ) -> None:
        self._answers = iter(answers)
        self._truth = iter(truth)
        self._target = target
        self._answer: tuple[int, ...] = ()
        self._start = 0

    def begin(self, context: Sequence[int]) -> None:
        self._answer, self._start = next(self._answers, ()), len(context)
        if self._target is not None:
            self._target.script = Script(len(context), next(self._truth, ()))

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        place = len(context) - self._start
        tokens = self._answer[place : place + limit]
        return Draft(tokens, source=self.name) if tokens else EMPTY_DRAFT

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """The record does not change."""

    def close(self) -> None:
        if self._target is not None:
            self._target.script = None
